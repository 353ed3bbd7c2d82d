"""The stored parts of a LangGraph thread: names, checkpoints, and writes that share a commit."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest
from langgraph.checkpoint.base import Checkpoint, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from stepwell import MemoryStorage
from stepwell.adapters.langgraph.names import checkpoint_name, id_of, long, name, namespace_of, short
from stepwell.adapters.langgraph.ownership import ThreadWriter
from stepwell.adapters.langgraph.threads import Threads
from stepwell.record import Address
from stepwell.storage import Apply, Get


def test_names_return_their_elements() -> None:
    odd = ["", "a/b", "%", "%2F", "~", "~x", "%7E", "é", str(UUID(int=0)), str(UUID(int=(1 << 128) - 1)).upper()]
    for text in [*odd, str(uuid6()), str(UUID(int=(1 << 128) - 1))]:
        assert long(short(text)) == text
        assert "/" not in short(text)
        part = checkpoint_name(text, text)
        assert (namespace_of(part), id_of(part)) == (text, text)
    assert len(name("w", "", str(uuid6()), str(uuid6()), "0")) == 52


def test_short_ids_have_the_order_of_the_ids() -> None:
    ids = [str(uuid6(clock_seq=step)) for step in range(200)] + [str(UUID(int=n << 100 | n)) for n in range(200)]
    assert sorted(ids) == [long(each) for each in sorted(map(short, ids))]


@pytest.mark.parametrize(
    ("checkpoint", "metadata"),
    [
        ({}, {"source": "loop", "step": 1, "parents": {}}),
        ({"channel_versions": {"a": "2", "b": "1"}, "updated_channels": ["a"]}, {"parents": {"": "x"}}),
        ({"channel_versions": {"a": "2", "b": "1"}, "updated_channels": ["b"]}, {"step": None}),
        ({"versions_seen": {"node": {"$x": "1"}}, "updated_channels": []}, {"user": "é", "ratio": 0.5}),
        ({"ts": "yesterday"}, {}),
        ({"ts": "2024-01-01T00:00:00+00:00"}, {}),
        ({"ts": "2024-01-01T02:00:00.000001+02:00"}, {}),
        ({"channel_versions": {"a": 1, "b": 1.5}}, {"source": "input"}),
        ({"pending_sends": []}, {"writes": {"node": {"a": [1, (2,)]}}}),
        ({}, {"when": UUID(int=1)}),
    ],
)
async def test_a_checkpoint_is_read_as_it_was_written(checkpoint: Any, metadata: Any) -> None:
    async with MemoryStorage() as storage:
        thread = Threads(storage, "langgraph", 1 << 20).one("ann", JsonPlusSerializer())
        given: Checkpoint = {**empty_checkpoint(), **checkpoint, "id": str(uuid6())}
        # Earlier releases of LangGraph have no such key.
        given.setdefault("updated_channels", None)
        values = {"text": "x" * 100, "small": 1, "other": {"a": [1, 2]}}
        versions: Any = dict.fromkeys(values, "1")
        given["channel_versions"] = given["channel_versions"] | versions
        whole: Checkpoint = {**given, "channel_values": values}
        parent = str(uuid6())
        await thread.writer().write(thread.codec.checkpoint("", whole, metadata, parent, versions))
        found = (await thread.get("ann", "", None)).tuple
        assert found is not None and found.parent_config is not None
        assert found.checkpoint == whole
        assert found.metadata == metadata
        assert found.parent_config["configurable"]["checkpoint_id"] == parent


class Slow(MemoryStorage):
    """A storage that counts its writes, and holds them up."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.free = asyncio.Event()

    async def perform(self, operation: Any) -> Any:
        if isinstance(operation, Apply):
            self.count += 1
            await self.free.wait()
        return await super().perform(operation)


async def test_a_cancelled_write_does_not_cancel_the_others_of_its_commit() -> None:
    async with Slow() as storage:
        address = Address("langgraph", '"ann"')
        writer = ThreadWriter(storage, address, 1 << 20)
        lingering = asyncio.create_task(writer.write({"w": "1"}, linger=True))
        await asyncio.sleep(0)
        leading = asyncio.create_task(writer.write({"c": "2"}))
        await asyncio.sleep(0)
        leading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leading
        storage.free.set()
        await asyncio.wait_for(lingering, 10)
        stored = await storage.perform(Get(address, True))
        assert stored.parts["w"] == "1"


async def test_writes_share_commits_and_a_lingering_one_is_written_alone_after_a_while() -> None:
    async with Slow() as storage:
        address = Address("langgraph", '"ann"')
        writer = ThreadWriter(storage, address, 1 << 20)
        first = asyncio.create_task(writer.write({"a": "1"}))
        while not storage.count:
            await asyncio.sleep(0)
        others = [asyncio.create_task(writer.write({f"b{n}": "1"}, linger=n % 2 == 0)) for n in range(10)]
        await asyncio.sleep(0)
        storage.free.set()
        await asyncio.wait_for(asyncio.gather(first, *others), 10)
        assert storage.count == 2
        await asyncio.wait_for(writer.write({"c": "1"}, linger=True), 10)
        assert storage.count == 3
        assert len((await storage.perform(Get(address, True))).parts) == 12


def test_a_lingering_write_of_another_event_loop_is_written_too() -> None:
    storage = MemoryStorage()
    address = Address("langgraph", '"ann"')
    writer = ThreadWriter(storage, address, 1 << 20)

    async def cut_off() -> None:
        # The loop ends before the timer does.
        linger = asyncio.create_task(writer.write({"a": "1"}, linger=True))
        await asyncio.sleep(0)
        linger.cancel()

    async def again() -> dict[str, str]:
        await asyncio.wait_for(writer.write({"b": "1"}, linger=True), 10)
        parts: dict[str, str] = (await storage.perform(Get(address, True))).parts
        return parts

    asyncio.run(cut_off())
    assert "b" in asyncio.run(again())
