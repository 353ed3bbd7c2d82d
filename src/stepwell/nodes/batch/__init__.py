"""Batches: nodes that run once for each item; walk/attempts.py retries an item."""
