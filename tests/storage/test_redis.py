"""The contract on Valkey, one server and Cluster, and on the system's Redis."""

from __future__ import annotations

import uuid
from pathlib import Path

import redis.asyncio

from stepwell import State, Storage, open_storage
from stepwell.record import Change
from stepwell.storage import Apply
from stepwell.testing import Clock, JournaledStorageContract
from tests.backends.redis import Redis, RedisCluster
from tests.servers.redis import the_system_server


class TestRedisStorage(JournaledStorageContract):
    counts = False

    def open_storage(self, clock: Clock) -> Storage:
        self.url = Redis(Path()).place()
        return open_storage(self.url, clock=clock)

    def reopen(self, storage: Storage) -> Storage:
        return open_storage(self.url, clock=storage.clock)


class TestSystemRedisStorage(JournaledStorageContract):
    counts = False

    def open_storage(self, clock: Clock) -> Storage:
        self.url = the_system_server().url(f"?prefix={uuid.uuid4().hex}")
        return open_storage(self.url, clock=clock)

    def reopen(self, storage: Storage) -> Storage:
        return open_storage(self.url, clock=storage.clock)


class TestRedisClusterStorage(JournaledStorageContract):
    counts = False

    def open_storage(self, clock: Clock) -> Storage:
        self.url = RedisCluster(Path()).place()
        return open_storage(self.url, clock=clock)

    def reopen(self, storage: Storage) -> Storage:
        return open_storage(self.url, clock=storage.clock)


async def test_deadlines_of_an_earlier_release_are_found_by_flow(clock: Clock) -> None:
    url = Redis(Path()).place()
    server, _, prefix = url.partition("?prefix=")
    async with open_storage(url, clock=clock) as storage, redis.asyncio.from_url(server) as client:
        for key, flow in ((1, "f"), (2, "g"), (3, None)):
            await storage.set_state("bot", key, State(flow, "s"))
            await storage.perform(Apply(storage.address("bot", key), Change(write="w", deadline=1.0)))
        # Earlier releases had no index by flow.
        names = [name async for name in client.scan_iter(f"{prefix}:*:f:bot/*")]
        assert await client.delete(*names) == 3
        clock.advance(1)
        for flow, key in (("f", 1), ("g", 2), (None, 3)):
            assert [due.address for due in await storage.due("bot", flow=flow)] == [storage.address("bot", key)]
