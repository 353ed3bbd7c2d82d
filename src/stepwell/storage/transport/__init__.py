"""How calls reach a backend: batches, timeouts, repeated reads, outages; and notices to other processes."""
