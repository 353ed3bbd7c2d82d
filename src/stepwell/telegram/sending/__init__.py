"""What a bot sends: the calls of handlers in order within Telegram's limits, and broadcasts."""
