"""The contract on Valkey, one server and Cluster, and on the system's Redis."""

from __future__ import annotations

import uuid
from pathlib import Path

import redis.asyncio

from stepwell import State, Storage, open_storage
from stepwell.record import Change
from stepwell.storage import Apply, Get, Range
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


async def test_the_index_of_parts_exists_only_if_a_range_was_read_and_ends_with_the_record(clock: Clock) -> None:
    url = Redis(Path()).place()
    server, _, prefix = url.partition("?prefix=")
    async with open_storage(url, clock=clock, sweep_every=None) as storage, redis.asyncio.from_url(server) as client:

        async def indexes() -> int:
            return len([name async for name in client.scan_iter(f"{prefix}:*:o:*")])

        parts = {f"p{number}": "text" for number in range(10)}
        for key in range(4):
            address = storage.address("bot", key)
            await storage.perform(Apply(address, Change(write="w", expiry=10.0 if key == 3 else None, parts=parts)))
            for all_parts in (False, True, ("p1",), Range(), Range(limit=11)):
                await storage.perform(Get(address, all_parts))
            assert await indexes() == key
            assert len((await storage.perform(Get(address, Range(limit=9)))).parts) == 9
            assert await indexes() == key + 1
        await storage.clear("bot", 0)
        assert await indexes() == 3
        await storage.set_state("bot", 1, State("f"))
        assert await indexes() == 2
        await storage.forget(storage.address("bot", 2))
        clock.advance(11)
        assert (await storage.sweep()).removed == 1
        assert await indexes() == 0


async def test_parts_of_an_earlier_release_are_in_the_index(clock: Clock) -> None:
    url = Redis(Path()).place()
    server, _, prefix = url.partition("?prefix=")
    async with open_storage(url, clock=clock) as storage, redis.asyncio.from_url(server) as client:
        address = storage.address("bot", 1)
        await storage.perform(Apply(address, Change(write="w", parts={"b": "1", "d": "1"})))
        assert list((await storage.perform(Get(address, Range("a")))).parts) == ["b", "d"]
        # Earlier releases did not know the index.
        (key,) = [name async for name in client.scan_iter(f"{prefix}:*:p:*")]
        await client.hset(key, mapping={"a": "1", "c": "1"})
        assert list((await storage.perform(Get(address, Range("a")))).parts) == ["a", "b", "c", "d"]
        await client.hdel(key, "b")
        assert list((await storage.perform(Get(address, Range("a", reverse=True)))).parts) == ["d", "c", "a"]
