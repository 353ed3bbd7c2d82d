"""Copies of records in another storage."""
