"""Imports of the states and data that bots have stored with the storages of their frameworks."""
