"""What happens to updates when they arrive and when they are handled: stops, turns, and the confirmation."""
