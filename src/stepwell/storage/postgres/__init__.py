"""PostgreSQL: a batch is one call of a function on the server."""

from stepwell.storage.postgres.storage import PostgresStorage

__all__ = ["PostgresStorage"]
