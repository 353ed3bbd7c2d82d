"""Calls in nodes of durable runs that must not run twice: the decorator, and what a run stores of them."""
