"""Batches: nodes that run once for each item."""
