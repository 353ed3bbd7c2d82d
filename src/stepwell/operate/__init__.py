"""Reads and edits the records and runs in a storage, for the tools of an operator."""
