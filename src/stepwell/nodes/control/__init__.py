"""Calls that start, resume, answer, pause and cancel runs."""
