"""Reads and edits the records and runs in a storage, for the command line and other tools of an operator."""
