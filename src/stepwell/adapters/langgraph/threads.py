"""Reads of threads, and changes of whole threads: deleting, copying and pruning."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory, PendingWrite
from langgraph.checkpoint.serde.base import SerializerProtocol

from stepwell import Storage
from stepwell.adapters.langgraph.names import (
    CHECKPOINT,
    RUN,
    VALUE,
    WRITES,
    checkpoint_name,
    id_of,
    name,
    namespace_of,
    run_name,
)
from stepwell.adapters.langgraph.ownership import ThreadWriter
from stepwell.adapters.langgraph.parts import CheckpointRow, ThreadCodec
from stepwell.engine import (
    LARGE_TEXT,
    Address,
    Apply,
    Change,
    Get,
    Guard,
    Range,
    Seal,
    Stored,
    Version,
    in_thread,
)
from stepwell.errors import RecordExists, VersionChanged

__all__ = ["Thread", "Threads"]

#: Parts, and threads, that are read at once.
PAGE: Final = 500
#: The size of the parts that are copied in one write.
_COPY_BYTES: Final = 4 * 1024 * 1024


class Found(NamedTuple):
    """A checkpoint, and the version of the record that had it."""

    tuple: CheckpointTuple | None
    version: Version | None


class Thread:
    """The record of one thread."""

    def __init__(self, storage: Storage, address: Address, serde: SerializerProtocol, limit: int) -> None:
        self.storage: Storage = storage
        self.address: Address = address
        self.serde: SerializerProtocol = serde
        self.limit: int = limit
        self.codec: ThreadCodec = ThreadCodec(Seal(address, storage.limits, limit), serde)
        #: The channels whose writes LangGraph awaits before it stores a checkpoint, as far as known.
        self.awaited: set[str] = {"__error_source_node__"}
        self._writer: tuple[asyncio.AbstractEventLoop, ThreadWriter] | None = None

    def writer(self) -> ThreadWriter:
        """Return the writer of all tasks of this event loop without a fence."""
        loop = asyncio.get_running_loop()
        if self._writer is None or self._writer[0] is not loop:
            self._writer = loop, ThreadWriter(self.storage, self.address, self.limit)
        return self._writer[1]

    async def get(self, thread_id: Any, namespace: str, checkpoint_id: str | None) -> Found:
        """Return one checkpoint, or the newest one of its namespace. It takes two round trips."""
        prefix = checkpoint_name(namespace, "")
        wanted: Range | tuple[str, ...] = Range.prefix(prefix, limit=1, reverse=True)
        if checkpoint_id is not None:
            wanted = (checkpoint_name(namespace, checkpoint_id),)
        while True:
            stored = await self._read(wanted)
            if stored is None or not stored.parts:
                return Found(None, None if stored is None else stored.version)
            ((part, text),) = stored.parts.items()
            found = await self.complete(thread_id, part, self.codec.row(part, text))
            # Without the checkpoint, it was pruned between the two reads.
            if found is not None:
                return Found(found, stored.version)

    async def complete(self, thread_id: Any, part: str, row: CheckpointRow) -> CheckpointTuple | None:
        """Read values and writes of a checkpoint; ``None`` if it was deleted."""
        namespace, checkpoint_id = namespace_of(part), id_of(part)
        names = (part, *row.value_names(namespace).values())
        writes = Range.prefix(name(WRITES, namespace, checkpoint_id, ""))
        # Both are read in one round trip.
        parts, pending = await asyncio.gather(self.parts(names), self.parts(writes))
        if part not in parts:
            return None
        ids = {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}
        config = cast("RunnableConfig", {"configurable": ids})
        if sum(map(len, parts.values())) + sum(map(len, pending.values())) > LARGE_TEXT:
            return await in_thread(self.codec.complete, config, row, parts | pending)
        return self.codec.complete(config, row, parts | pending)

    async def namespaces(self) -> list[str]:
        """Return the namespaces that have checkpoints."""
        found: list[str] = []
        after = name(CHECKPOINT, "")
        while parts := await self.parts(Range(after, name(CHECKPOINT, "") + "\U0010ffff", limit=1)):
            (part,) = parts
            found.append(namespace_of(part))
            after = Range.prefix(checkpoint_name(found[-1], "")).last or ""
        return found

    async def newest(
        self, namespace: str, before: str | None, *, included: bool = False
    ) -> AsyncIterator[tuple[str, CheckpointRow]]:
        """Yield the checkpoints of a namespace before another one, the newest first."""
        span = Range.prefix(checkpoint_name(namespace, ""), limit=50, reverse=True)
        last = span.last if before is None else checkpoint_name(namespace, before) + "\0" * included
        while parts := await self.parts(Range(span.first, last, 50, reverse=True)):
            for part, text in parts.items():
                if last != part:
                    yield part, self.codec.row(part, text)
            if last == part:
                return
            last = part

    async def history(
        self, namespace: str, checkpoint_id: str | None, channels: Sequence[str]
    ) -> dict[str, DeltaChannelHistory]:
        """Return the writes to each channel by the ancestors of a checkpoint, up to the nearest stored value."""
        writes: dict[str, list[PendingWrite]] = {channel: [] for channel in channels}
        seeds: dict[str, Any] = {}
        ancestors = self._ancestors_of(namespace, checkpoint_id)
        while len(seeds) < len(writes):
            rows = [row async for row in _first(ancestors, 50)]
            if not rows:
                break
            # The writes of 50 checkpoints are read in one round trip.
            found = await asyncio.gather(*(self._contents(namespace, *row, writes.keys()) for row in rows))
            for values, pending in found:
                open_channels = writes.keys() - seeds.keys()
                for write in reversed(pending):
                    if write[1] in open_channels:
                        writes[write[1]].append(write)
                seeds |= {channel: value for channel, value in values.items() if channel in open_channels}
        await ancestors.aclose()
        result: dict[str, DeltaChannelHistory] = {}
        for channel in channels:
            result[channel] = {"writes": writes[channel][::-1]}
            if channel in seeds:
                result[channel]["seed"] = seeds[channel]
        return result

    async def _ancestors_of(
        self, namespace: str, checkpoint_id: str | None
    ) -> AsyncGenerator[tuple[str, CheckpointRow]]:
        # A checkpoint is newer than its parent.
        wanted = None if checkpoint_id is None else checkpoint_name(namespace, checkpoint_id)
        is_first = True
        async for part, row in self.newest(namespace, checkpoint_id, included=True):
            if wanted in (None, part):
                if not is_first:
                    yield part, row
                is_first = False
                if row.parent is None:
                    return
                wanted = checkpoint_name(namespace, row.parent)

    async def _contents(
        self, namespace: str, part: str, row: CheckpointRow, channels: Collection[str]
    ) -> tuple[dict[str, Any], list[PendingWrite]]:
        names = {channel: each for channel, each in row.value_names(namespace).items() if channel in channels}
        writes = Range.prefix(name(WRITES, namespace, id_of(part), ""))
        stored, pending = await asyncio.gather(self.parts(tuple(names.values())), self.parts(writes))
        values = {channel: value for channel, value in row.values.items() if channel in channels}
        values |= {channel: self.codec.value(each, stored[each]) for channel, each in names.items() if each in stored}
        return values, self.codec.pending(pending)

    async def all(self, kind: str) -> AsyncIterator[tuple[str, str]]:
        """Yield all parts of a kind."""
        span = Range.prefix(kind + "/")
        first = span.first
        while parts := await self.parts(Range(first, span.last, PAGE)):
            for item in parts.items():
                yield item
            first = [*parts][-1] + "\0"

    async def parts(self, wanted: Range | tuple[str, ...]) -> dict[str, str]:
        """Return parts of the record."""
        stored = await self._read(wanted)
        return {} if stored is None else dict(stored.parts or {})

    async def _read(self, wanted: Range | tuple[str, ...]) -> Stored | None:
        stored: Stored | None = await self.storage.perform(Get(self.address, wanted))
        return stored

    async def delete(self) -> None:
        """Delete the record."""
        await self.storage.perform(Apply(self.address, Change(self.storage.ids(), delete=True, forget=True)))

    async def remove(self, choose: Callable[[dict[str, CheckpointRow]], Collection[str]]) -> None:
        """Delete checkpoints with their writes, and the values that no other checkpoint has, in one write.

        ``choose`` gets all checkpoints by the names of their parts, and returns the names to delete. An ancestor from
        which a remaining checkpoint computes a channel is kept.
        """
        while True:
            stored = await self._read(())
            if stored is None:
                return
            rows = {part: self.codec.row(part, text) async for part, text in self.all(CHECKPOINT)}
            chosen = set(choose(rows))
            kept = {part: row for part, row in rows.items() if part not in chosen}
            kept |= await self._ancestors(rows, kept)
            gone = rows.keys() - kept.keys()
            if not gone:
                return
            values = {each for part, row in kept.items() for each in row.value_names(namespace_of(part)).values()}
            runs = {run_name(run) for row in kept.values() if (run := row.metadata.get("run_id"))}
            names = list(gone)
            names += [part async for part, _ in self.all(VALUE) if part not in values]
            names += [part async for part, _ in self.all(RUN) if part not in runs]
            ids = {(namespace_of(part), id_of(part)) for part in kept}
            names += [part async for part, _ in self.all(WRITES) if (namespace_of(part), id_of(part)) not in ids]
            change = Change(self.storage.ids(), parts=dict.fromkeys(names), limit=self.limit)
            if not kept:
                change = Change(self.storage.ids(), delete=True, forget=True)
            try:
                await self.storage.perform(Apply(self.address, change, Guard(version=stored.version)))
            except (VersionChanged, RecordExists):
                # A new checkpoint may have a value that was about to be deleted.
                continue
            return

    async def _ancestors(
        self, rows: dict[str, CheckpointRow], kept: dict[str, CheckpointRow]
    ) -> dict[str, CheckpointRow]:
        """Return the ancestors from whose writes a delta channel of a kept checkpoint is computed."""
        needed: dict[str, CheckpointRow] = {}
        for part, last in kept.items():
            row, namespace = last, namespace_of(part)
            open_channels = set(row.metadata.get("counters_since_delta_snapshot") or ())
            while open_channels:
                names = row.value_names(namespace)
                found = await self.parts(tuple(names[each] for each in open_channels if each in names))
                open_channels -= {each for each in open_channels if each in row.values or names.get(each) in found}
                above = "" if row.parent is None else checkpoint_name(namespace, row.parent)
                if above not in rows:
                    break
                row = needed[above] = rows[above]
        return needed

    async def copy_to(self, target: Thread) -> None:
        """Copy all parts. Parts of the same name are replaced.

        The checkpoints are written last and at once, so that a reader finds all of them or none.
        """
        writer = ThreadWriter(target.storage, target.address, target.limit)
        # They are read first: the values of a checkpoint that is stored meanwhile may not be copied.
        rows = {part: text async for part, text in self.all(CHECKPOINT)}
        batch: dict[str, str] = {}
        size = 0
        for kind in (VALUE, WRITES, RUN):
            async for part, text in self.all(kind):
                batch.update(self.codec.copied({part: text}, target.codec))
                size += len(text)
                if size > _COPY_BYTES:
                    await writer.write(batch)
                    batch, size = {}, 0
        # The values of a checkpoint that was pruned meanwhile may be missing.
        kept = {part: rows[part] async for part, _ in self.all(CHECKPOINT) if part in rows}
        batch.update(self.codec.copied(kept, target.codec))
        if batch:
            await writer.write(batch)


async def _first(
    rows: AsyncGenerator[tuple[str, CheckpointRow]], count: int
) -> AsyncIterator[tuple[str, CheckpointRow]]:
    for _ in range(count):
        row = await anext(rows, None)
        if row is None:
            return
        yield row


class Threads:
    """All threads of a namespace of a storage."""

    def __init__(self, storage: Storage, namespace: str, limit: int) -> None:
        self.storage: Storage = storage
        self.namespace: str = namespace
        self.limit: int = limit

    def one(self, thread_id: Any, serde: SerializerProtocol) -> Thread:
        """Return one thread."""
        return Thread(self.storage, self.storage.address(self.namespace, str(thread_id)), serde, self.limit)

    async def ids(self) -> AsyncIterator[str]:
        """Yield the ids of all threads."""
        async for entry in self.storage.scan(self.namespace, page=PAGE):
            yield str(entry.key)

    async def of_runs(self, run_ids: Iterable[str]) -> list[str]:
        """Return the threads that have checkpoints of one of these runs."""
        names = tuple(map(run_name, run_ids))
        found = []
        async for thread_id in self.ids():
            stored: Stored | None = await self.storage.perform(
                Get(self.storage.address(self.namespace, thread_id), names)
            )
            if stored is not None and stored.parts:
                found.append(thread_id)
        return found
