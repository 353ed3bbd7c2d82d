"""The record of a durable run: its position, parts, mail and status."""
