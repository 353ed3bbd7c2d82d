"""What happens to a conversation at a time: timeouts, expiry, and calls that are sent later."""
