"""One conversation, from its claim to its commit."""
