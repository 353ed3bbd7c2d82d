"""Redis, one server and Cluster: a fresh place is a prefix of its own."""

from __future__ import annotations

import uuid

from tests.backends.base import Backend
from tests.servers.redis import the_cluster, the_server


class Redis(Backend):
    name = "redis"
    shared = True
    durable = True

    def place(self) -> str:
        return the_server().url(f"?prefix={uuid.uuid4().hex}")


class RedisCluster(Backend):
    name = "redis-cluster"
    shared = True
    durable = True

    def place(self) -> str:
        return the_cluster().url(f"?prefix={uuid.uuid4().hex}")
