"""The ordered indexes of Redis: chunks that split and vanish."""

from __future__ import annotations

import asyncio
import itertools
import random
import uuid
from collections.abc import Sequence

from stepwell import Storage, open_storage
from stepwell.record import Address, Change
from stepwell.storage import Apply
from stepwell.storage.redis.wire import tag_of
from tests.servers.redis import the_server

BOT = "a/bot"
TAGS = ("user:1", "chat:\n2")
#: More than three chunks.
COUNT = 400


def addresses_of_one_tag(storage: Storage, count: int) -> list[Address]:
    """Return addresses with the same hash tag, so that all are in the same indexes."""
    wanted = tag_of(storage.address(BOT, 0))
    every = (storage.address(BOT, n) for n in itertools.count())
    return list(itertools.islice((each for each in every if tag_of(each) == wanted), count))


async def write(storage: Storage, addresses: Sequence[Address], *, delete: bool = False) -> None:
    def apply(address: Address) -> Apply:
        if delete:
            return Apply(address, Change(write=storage.ids(), delete=True, forget=True))
        fields = storage.seal(address).fields({"a": 1})
        return Apply(address, Change(write=storage.ids(), set=fields, tags=TAGS))

    await asyncio.gather(*(storage.perform(apply(address)) for address in addresses))


async def check(storage: Storage, expected: set[Address], page: int = 7) -> None:
    for tag in (None, *TAGS):
        assert [entry.address async for entry in storage.scan(BOT, tag=tag, page=page)] == sorted(expected)
    namespace = storage.address(BOT, 0).namespace
    for tag in TAGS:
        assert await storage.traces(namespace, tag, limit=COUNT) == sorted(expected)
        assert await storage.traces(namespace, tag, limit=3) == sorted(expected)[:3]
    assert await storage.namespaces() == ([namespace] if expected else [])


async def test_chunks_split_stay_compact_and_vanish() -> None:
    choose = random.Random(6)
    prefix = uuid.uuid4().hex
    async with open_storage(the_server().url(f"?prefix={prefix}"), sweep_every=None) as storage:
        every = addresses_of_one_tag(storage, COUNT)
        choose.shuffle(every)
        await write(storage, every)
        await check(storage, set(every), page=100)
        with the_server().client() as client:
            chunks = [key for kind in "kt" for key in client.keys(f"{prefix}:*:{kind}:*bot/*")]
            assert len(chunks) > 3 * COUNT // 120
            for chunk in chunks:
                assert client.zcard(chunk) <= 120
                assert client.object("encoding", chunk) in ("listpack", "ziplist")
        there = set(every)
        for _ in range(3):
            gone = set(choose.sample(every, COUNT // 2))
            await write(storage, sorted(gone & there), delete=True)
            there -= gone
            await check(storage, there, page=100)
            back = set(choose.sample(every, COUNT // 4))
            await write(storage, sorted(back))
            there |= back
        await check(storage, there)
        await write(storage, sorted(there), delete=True)
        await check(storage, set())
        with the_server().client() as client:
            assert {key.partition("}:")[2][0] for key in client.keys(f"{prefix}:*")} <= {"j"}
