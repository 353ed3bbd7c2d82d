"""One conversation, from its claim to its commit, and the updates that it has handled."""
