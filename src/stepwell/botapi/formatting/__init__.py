"""Texts: entities, HTML, Markdown, and their limits."""
