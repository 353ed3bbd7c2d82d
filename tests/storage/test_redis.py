"""The contract on Redis, one server and Cluster."""

from __future__ import annotations

from pathlib import Path

from stepwell import Storage, open_storage
from stepwell.testing import Clock, JournaledStorageContract
from tests.backends.redis import Redis, RedisCluster


class TestRedisStorage(JournaledStorageContract):
    def open_storage(self, clock: Clock) -> Storage:
        self.url = Redis(Path()).place()
        return open_storage(self.url, clock=clock)

    def reopen(self, storage: Storage) -> Storage:
        return open_storage(self.url, clock=storage.clock)


class TestRedisClusterStorage(JournaledStorageContract):
    def open_storage(self, clock: Clock) -> Storage:
        self.url = RedisCluster(Path()).place()
        return open_storage(self.url, clock=clock)

    def reopen(self, storage: Storage) -> Storage:
        return open_storage(self.url, clock=storage.clock)
