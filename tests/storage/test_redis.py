"""The contract on Valkey, one server and Cluster, and on the system's Redis."""

from __future__ import annotations

import uuid
from pathlib import Path

from stepwell import Storage, open_storage
from stepwell.testing import Clock, JournaledStorageContract
from tests.backends.redis import Redis, RedisCluster
from tests.servers.redis import the_system_server


class TestRedisStorage(JournaledStorageContract):
    queues = False

    def open_storage(self, clock: Clock) -> Storage:
        self.url = Redis(Path()).place()
        return open_storage(self.url, clock=clock)

    def reopen(self, storage: Storage) -> Storage:
        return open_storage(self.url, clock=storage.clock)


class TestSystemRedisStorage(JournaledStorageContract):
    queues = False

    def open_storage(self, clock: Clock) -> Storage:
        self.url = the_system_server().url(f"?prefix={uuid.uuid4().hex}")
        return open_storage(self.url, clock=clock)

    def reopen(self, storage: Storage) -> Storage:
        return open_storage(self.url, clock=storage.clock)


class TestRedisClusterStorage(JournaledStorageContract):
    queues = False

    def open_storage(self, clock: Clock) -> Storage:
        self.url = RedisCluster(Path()).place()
        return open_storage(self.url, clock=clock)

    def reopen(self, storage: Storage) -> Storage:
        return open_storage(self.url, clock=storage.clock)
