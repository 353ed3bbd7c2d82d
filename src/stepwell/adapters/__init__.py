"""Stepwell in the frameworks that people have bots in: one module each, imported only when it is asked for."""
