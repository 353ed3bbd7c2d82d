"""Redis, one server and Cluster: each store is a prefix."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable
from typing import Any

import redis

from stepwell.record import Address
from stepwell.storage.redis.wire import Keys
from tests.backends.base import Backend
from tests.servers.redis import the_cluster, the_server


class Redis(Backend):
    name = "redis"
    shared = True
    durable = True

    def place(self) -> str:
        return the_server().url(f"?prefix={uuid.uuid4().hex}")

    def client(self) -> Any:
        """Return a blocking client that returns bytes."""
        return _client()

    async def corrupt(self, url: str, address: Address, kind: str, name: str, damage: Callable[[bytes], bytes]) -> None:
        record = Keys(url.partition("?prefix=")[2]).record(address)
        client = self.client()
        if kind == "memo":
            key = record.replace(":r:", ":m:", 1)
            until, _, text = client.get(key).partition(b" ")
            client.set(key, until + b" " + damage(text), keepttl=True)
            return
        key = record.replace(":r:", ":p:", 1) if kind == "part" else record
        field = {"head": "$h", "tags": "$g"}.get(kind, name)
        client.hset(key, field, damage(client.hget(key, field)))


class RedisCluster(Redis):
    name = "redis-cluster"

    def place(self) -> str:
        return the_cluster().url(f"?prefix={uuid.uuid4().hex}")

    def client(self) -> Any:
        return _cluster_client()


@functools.cache
def _client() -> redis.Redis:
    return redis.Redis(port=the_server().port)


@functools.cache
def _cluster_client() -> redis.RedisCluster:
    return redis.RedisCluster(host="127.0.0.1", port=the_cluster().nodes[0].port)
