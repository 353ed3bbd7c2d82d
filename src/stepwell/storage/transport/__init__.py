"""How calls reach a backend: groups and batches, timeouts, repeated reads, outages."""
