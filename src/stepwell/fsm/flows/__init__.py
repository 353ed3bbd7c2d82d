"""Flows and their states, as users declare them."""
