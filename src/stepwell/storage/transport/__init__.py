"""How calls reach a backend: groups and batches, timeouts, repeated reads, and waiting for a storage that is away."""
