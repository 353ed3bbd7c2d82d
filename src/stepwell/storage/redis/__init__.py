"""Redis and Valkey, single server or Cluster."""

from stepwell.storage.redis.storage import RedisStorage

__all__ = ["RedisStorage"]
