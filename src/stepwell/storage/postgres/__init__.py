"""PostgreSQL."""

from stepwell.storage.postgres.storage import PostgresStorage

__all__ = ["PostgresStorage"]
