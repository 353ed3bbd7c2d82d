"""Shared by the pages of the playground and the inspector: access, serving, common files."""
