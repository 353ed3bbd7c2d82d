"""Shared by the pages of the playground and the inspector: access, serving, and the files of their common design."""
