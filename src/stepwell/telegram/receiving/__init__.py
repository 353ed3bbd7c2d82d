"""What a bot receives: updates by polling and by webhook, until each one is finished."""
