"""One SQLite file on one machine."""

from stepwell.storage.sqlite.storage import SQLiteStorage

__all__ = ["SQLiteStorage"]
