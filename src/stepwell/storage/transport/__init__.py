"""How calls reach a backend, and notices other processes: groups, batches, timeouts, outages, wake-ups."""
