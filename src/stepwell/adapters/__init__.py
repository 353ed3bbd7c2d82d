"""Adapters for bot frameworks: one package each, imported only when it is used."""
