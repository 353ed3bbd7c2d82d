"""The contract on Valkey, one server and Cluster, and on the system's Redis."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from stepwell import RedisStorage, State, Storage, open_storage
from stepwell.record import Change, Head
from stepwell.storage import Apply, Claim, Claimed, Get, Guard, Range, Release
from stepwell.testing import Clock, JournaledStorageContract
from tests.backends.redis import Redis, RedisCluster
from tests.servers.redis import the_server, the_system_server


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


class Watching(redis.asyncio.Connection):
    """Counts the batches that it sends."""

    batches = 0

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        type(self).batches += b"EVALSHA" in b"".join(command)
        await super().send_packed_command(command, check_health)


class Listening(redis.asyncio.Connection):
    """Counts the batches whose replies it reads."""

    batches = 0

    async def read_response(self, *arguments: Any, **options: Any) -> Any:
        reply = await super().read_response(*arguments, **options)
        # Only the reply to a batch has a list for each operation.
        type(self).batches += isinstance(reply, list) and isinstance(reply[-1], list)
        return reply


@pytest.mark.parametrize("kind", [Watching, Listening])
async def test_the_methods_of_a_given_class_of_connections_are_called(
    kind: type[Watching | Listening], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "batches", 0)
    pool = redis.asyncio.ConnectionPool(kind, port=the_server().port)
    async with redis.asyncio.Redis(connection_pool=pool) as client:
        async with RedisStorage(client, prefix=uuid.uuid4().hex, sweep_every=None) as storage:
            for number in range(3):
                await storage.update_data("bot", 1, {"a": number})
            assert kind.batches >= 3
            assert await storage.get_data("bot", 1) == {"a": 2}
    await pool.disconnect()


class Text(str):
    """A text of a program that has its own class for texts."""

    __slots__ = ()


@pytest.mark.parametrize("target", [Redis, RedisCluster])
async def test_texts_may_be_of_a_subclass_of_str(target: type[Redis]) -> None:
    async with open_storage(target(Path()).place()) as storage:

        async def use(key: int) -> None:
            address, token = storage.address("bot", key), Text("token")
            claimed = await storage.perform(Claim(address, token, 10))
            assert isinstance(claimed, Claimed)
            change = Change(
                write=Text("w"),
                head=Head(Text("form"), Text("name"), Text("head")),
                set={Text("a"): Text("1"), "b": "2"},
                tags=(Text("user:1"),),
                memo=Text("memo"),
                parts={Text("p"): Text("3"), "q": "4"},
            )
            await storage.perform(Apply(address, change, Guard(token, claimed.base), "keep", 10))
            await storage.perform(Apply(address, Change(write="x", unset=(Text("b"),)), Guard(token), "keep", 10))
            await storage.perform(Release(address, token))
            stored = await storage.perform(Get(address, (Text("p"),)))
            assert (stored.head, stored.fields, stored.tags) == ("head", {"a": "1"}, ("user:1",))
            assert stored.parts == {"p": "3"}
            assert (await storage.perform(Claim(address, token, 10))).memo == "memo"

        await use(0)
        # Together they are one call for several hash tags in a Cluster.
        await asyncio.gather(*[use(key) for key in range(1, 20)])
