"""Runs that were stored with another graph of their flow."""
