"""The record of a durable run: its state, and beside it a table (table.py), parts and mail."""
