"""What ``Storage`` consists of: its lifecycle, its methods for users, and its background work."""
