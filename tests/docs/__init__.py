"""Runs the snippets of the README and the docs, and checks their links."""
