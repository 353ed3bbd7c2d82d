"""How calls reach a backend, and notices other processes: batches, timeouts, outages, wake-ups."""
