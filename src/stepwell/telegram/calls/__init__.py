"""Calls of the Bot API over HTTP."""
