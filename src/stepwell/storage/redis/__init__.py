"""Redis and Valkey, a single server, Sentinel or Cluster: a batch is one Lua script."""

from stepwell.storage.redis.storage import RedisStorage

__all__ = ["RedisStorage"]
