"""Submitted runs: queues, partitions, child runs and limits."""
