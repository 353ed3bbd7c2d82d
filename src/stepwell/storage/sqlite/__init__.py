"""One SQLite file on one machine: a batch is one transaction in a thread."""

from stepwell.storage.sqlite.storage import SQLiteStorage

__all__ = ["SQLiteStorage"]
