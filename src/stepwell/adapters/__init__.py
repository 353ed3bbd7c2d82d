"""Adapters for bot frameworks, agents, task queues and tracing, imported only when used."""
