"""Copying records from one storage to another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any

from stepwell._secrets import quoted
from stepwell.codec import Seal
from stepwell.errors import CorruptRecord, InvalidOption, NotCopied, UnknownType, VersionChanged
from stepwell.record import (
    KEEP,
    Address,
    Change,
    Head,
    Keep,
    Stored,
)
from stepwell.storage.contract import Storage
from stepwell.storage.copying.claims import PatientClaims, all_ended
from stepwell.storage.copying.selection import Selection
from stepwell.storage.operations import Apply, Claim, Claimed, Get, Guard, Range, Release
from stepwell.storage.urls import as_storage

__all__ = ["Copied", "copy_records", "count_extra", "count_records"]

#: The number of parts of a record that are read at once.
PARTS_AT_ONCE = 1000
#: Parts are copied in pieces of about this many characters, so that no call takes long.
PIECE = 1024 * 1024
#: Seconds of a claim in the source. Short, because a copy that is killed blocks the conversations that it has claimed.
SOURCE_LEASE = 10.0
#: Seconds of a claim in the target, which each write extends.
TARGET_LEASE = 30.0
#: How often a record is read from the beginning because it was written meanwhile.
MOST_ATTEMPTS = 3
#: Records that the source has stored are not limited by the target. Its limit applies to later writes.
NO_LIMIT = 1 << 50


@dataclass(slots=True, kw_only=True)
class Copied:
    """The progress and the result of a copy.

    Example::

        async with open_storage("sqlite:///bot.db") as old, open_storage("sqlite:///new.db") as new:
            copied: Copied = await copy_records(old, new)
            print(copied.written, "written,", copied.verified, "compared")
    """

    #: Encoded names, in the order of copying.
    namespaces: list[str]
    #: The namespace that is being copied or verified.
    namespace: str = ""
    #: The number of records written to the target.
    written: int = 0
    #: Records that the target already had in the same version.
    same: int = 0
    #: Records that the target had in another version, unchanged because of ``overwrite=False``.
    kept: int = 0
    #: Records that were read again from both storages and found equal.
    verified: int = 0
    #: Records that were written or deleted in the source after they were copied. Copy again to copy them too.
    changed: int = 0
    #: Records of the target that the source does not have. Not counted without ``verify`` and ``remove``.
    extra: int = 0
    #: Records that were deleted in the target with ``remove=True``.
    removed: int = 0
    #: Damaged records. They were copied unchanged.
    damaged: list[Address] = field(default_factory=list)


async def copy_records(
    source: Storage | str,
    target: Storage | str,
    *,
    namespaces: Iterable[str] | None = None,
    overwrite: bool = True,
    verify: bool = True,
    remove: bool = False,
    wait: float = 60.0,
    progress: Callable[[Copied], None] | None = None,
) -> Copied:
    """Copy all records, or those of some bots: ``namespaces`` are bots' names, ``record.RUNS`` for node runs, or
    ``record.LOGS`` for all logs. A bot is copied with its logs, its turns, its inbox and the copies of its damaged
    records.

    It copies flow, state, revision, history, data, tags, deadline, expiry, queue, parts, and the memo of handled
    updates. It does not copy claims and tombstones. The time that remains until a deadline or an expiry stays the
    same. Records of one queue keep their priorities, but within a priority their order may change.

    You may repeat it after an interruption or to catch up: records that the target has in the same version are
    skipped. It replaces records of the target that differ, unless ``overwrite`` is ``False``. So stop the bots of the
    source, copy, and only then start the bots of the target.

    Conversations that were cleared and users who were forgotten since an earlier copy are still in the target:
    ``Copied.extra`` counts the records that the source does not have. With ``remove`` they are deleted there without a
    trace: all records of the target that the source does not have, or those of ``namespaces``; with ``RUNS``, the runs
    of other programs too. To find them, ``verify`` and ``remove`` read all records of the target; a copy of few records
    to a large target needs neither, and ``overwrite=False`` does not count them.

    Each record is claimed in the source while it is read; ``Busy`` is raised for a record that is held longer than
    ``wait`` seconds. With ``verify`` all records are then read again from both storages, and ``NotCopied`` names those
    that differ; ``Copied.changed`` counts those that were written in the source meanwhile. ``progress`` is called after
    each page. A storage given as a URL is opened and closed here.

    Example::

        async with open_storage("sqlite:///bot.db") as old, open_storage("sqlite:///new.db") as new:
            copied = await copy_records(old, new)
    """
    opened_here = [isinstance(storage, str) for storage in (source, target)]
    source, target = as_storage(source, "source"), as_storage(target, "target")
    if source is target:
        raise InvalidOption("source and target are the same storage")
    if isinstance(namespaces, str):
        raise InvalidOption(f"namespaces must be a list of bots' names: write [{quoted(namespaces)}]")
    try:
        await source.open()
        await target.open()
        chosen = await Selection.of(source, namespaces)
        copied = Copied(namespaces=chosen.names)
        copier = _Copier(source, target, copied, overwrite=overwrite, remove=remove, wait=wait)

        async def work_on(storage: Storage, names: list[str], work: Callable[[Address], Awaitable[None]]) -> None:
            for copied.namespace in names:
                async for addresses in chosen.pages(storage, copied.namespace):
                    try:
                        await all_ended(work(address) for address in addresses)
                    finally:
                        if progress is not None:
                            progress(copied)

        await work_on(source, chosen.names, copier.copy)
        if verify:
            await work_on(source, chosen.names, copier.compare)
        if remove or (verify and overwrite):
            await work_on(target, await chosen.names_in(target), copier.check_extra)
        if copied.removed:
            await target.erase(only_if_quick=True)
    finally:
        for storage, close in zip((source, target), opened_here, strict=True):
            if close:
                await storage.close()
    if copier.differing:
        raise NotCopied([address.text for address in copier.differing])
    return copied


async def count_records(source: Storage, namespaces: Iterable[str] | None = None) -> dict[str, int]:
    """Return how many records ``copy_records`` would copy of each encoded namespace.

    Example::

        from stepwell.engine import count_records

        await storage.set_data("my_bot", 42, {"name": "Ann"})
        assert await count_records(storage) == {"my_bot": 1}
    """
    await source.ensure_open()
    chosen = await Selection.of(source, namespaces)
    return {name: sum([len(page) async for page in chosen.pages(source, name)]) for name in chosen.names}


async def count_extra(source: Storage, target: Storage, namespaces: Iterable[str] | None = None) -> int:
    """Return how many records ``copy_records(remove=True)`` would delete in the target.

    Example::

        from stepwell.engine import count_extra

        await storage.set_data("my_bot", 42, {"name": "Ann"})
        assert await count_extra(MemoryStorage(), storage) == 1
    """
    await source.ensure_open()
    await target.ensure_open()
    chosen = await Selection.of(source, namespaces)
    count = 0
    for name in await chosen.names_in(target):
        async for page in chosen.pages(target, name):
            found = await asyncio.gather(*(source.perform(Get(address)) for address in page))
            count += found.count(None)
    return count


class _Copier:
    """Copies and compares single addresses."""

    def __init__(
        self, source: Storage, target: Storage, copied: Copied, *, overwrite: bool, remove: bool, wait: float
    ) -> None:
        self._source = source
        self._target = target
        self._copied = copied
        self._overwrite = overwrite
        self._remove = remove
        self._claims = PatientClaims(wait)
        #: The time of the first claim, on the clock of each storage.
        self._source_began = self._target_began = inf
        self._skipped: set[Address] = set()
        self.differing: list[Address] = []

    async def copy(self, address: Address) -> None:
        """Copy one record, unless the target has it."""
        for attempt in range(MOST_ATTEMPTS):
            try:
                await self._copy(address)
            except VersionChanged:
                # Another process has written a record with many parts while they were read.
                if attempt == MOST_ATTEMPTS - 1:
                    raise
            else:
                return

    async def _copy(self, address: Address) -> None:
        there: Stored | None = await self._target.perform(Get(address))
        token = self._source.ids()
        claimed = await self._claims.claim(self._source, address, token, SOURCE_LEASE)
        self._source_began = min(self._source_began, claimed.now)
        try:
            if claimed.record is None:
                return
            if there is not None:
                if _same_write(there, claimed.record):
                    self._copied.same += 1
                    return
                if not self._overwrite:
                    self._copied.kept += 1
                    self._skipped.add(address)
                    return
            record: Stored | None = await self._source.perform(Get(address, Range(limit=PARTS_AT_ONCE)))
            if record is None:
                return
            if record.version != claimed.record.version:
                # If the lease has ended before the read, the memo may be older than the record.
                claimed = await self._claims.claim(self._source, address, token, SOURCE_LEASE)
            if len(record.parts or ()) == PARTS_AT_ONCE:
                await self._write(address, record, claimed, there, self._more_parts(address, record, token))
                return
        finally:
            await self._source.perform(Release(address, token))
        await self._write(address, record, claimed, there)

    async def _write(
        self,
        address: Address,
        record: Stored,
        claimed: Claimed,
        there: Stored | None,
        more: AsyncIterator[dict[str, str]] | None = None,
    ) -> None:
        """Write a record to the target, and then more parts."""
        token = self._target.ids()
        taken = await self._claims.claim(self._target, address, token, TARGET_LEASE)
        base = taken.base
        self._target_began = min(self._target_began, taken.now)

        async def apply(change: Change) -> None:
            nonlocal base
            applied = await self._target.perform(Apply(address, change, Guard(token, base), "keep", TARGET_LEASE))
            base = applied.base

        # The last write has the write id of the record, which marks a complete copy.
        last = self._target.ids() if more is not None else record.version.write
        try:
            for change in self._changes(address, record, claimed, there, last):
                await apply(change)
            if more is not None:
                async for parts in more:
                    for piece in _pieces(parts):
                        await apply(Change(write=self._target.ids(), parts=piece, limit=NO_LIMIT))
                await apply(Change(write=record.version.write, limit=NO_LIMIT))
        finally:
            await self._target.perform(Release(address, token))
        self._copied.written += 1

    async def _more_parts(self, address: Address, record: Stored, token: str) -> AsyncIterator[dict[str, str]]:
        """Yield the parts after the first ones. Raises ``VersionChanged`` if the record was written meanwhile."""
        seal = self._source.seal(address)
        parts = record.parts or {}
        while len(parts) == PARTS_AT_ONCE:
            # It keeps handlers away. If another holder has it by now, the version shows what that one writes.
            await self._source.perform(Claim(address, token, SOURCE_LEASE))
            wanted = Range(next(reversed(parts)) + "\0", limit=PARTS_AT_ONCE)
            stored: Stored | None = await self._source.perform(Get(address, wanted))
            if stored is None or stored.version != record.version:
                raise VersionChanged(address.text)
            parts = stored.parts or {}
            self._check_parts(seal, parts)
            yield parts

    def _changes(
        self, address: Address, record: Stored, claimed: Claimed, there: Stored | None, last: str
    ) -> Iterator[Change]:
        """Yield the writes of a record. ``last``: the id of the last one."""
        head: Head | Keep = KEEP
        flow, state = self._names(address, record)
        if record.head is not None:
            head = Head(flow, state, record.head)
        elif there is not None:
            # A change cannot remove flow and state, only the whole record.
            yield Change(write=self._target.ids(), delete=True)
        pieces = _pieces(record.parts or {})
        writes = [self._target.ids() for _ in pieces[1:]] + [last]
        yield Change(
            write=writes[0],
            replace=True,
            head=head,
            set=record.fields,
            tags=record.tags,
            deadline=None if record.deadline is None else record.deadline - claimed.now,
            expiry=None if record.expires_at is None else record.expires_at - claimed.now,
            memo=KEEP if claimed.memo is None else claimed.memo,
            parts=pieces[0],
            limit=NO_LIMIT,
            queue=record.queue if record.queue is not None or there is not None else KEEP,
        )
        for write, piece in zip(writes[1:], pieces[1:], strict=True):
            yield Change(write=write, parts=piece, limit=NO_LIMIT)

    def _names(self, address: Address, record: Stored) -> tuple[str | None, str | None]:
        """Return flow and state for the target's indexes, and note whether the record is damaged."""
        seal = self._source.seal(address)
        flow = state = None
        try:
            flow, state = seal.open_head(record.head).index_texts
            for name, text in record.fields.items():
                # A class of the bot need not be registered in this process.
                with suppress(UnknownType):
                    seal.data({name: text})
        except CorruptRecord:
            self._copied.damaged.append(address)
        self._check_parts(seal, record.parts or {})
        return flow, state

    def _check_parts(self, seal: Seal, parts: Mapping[str, str]) -> None:
        """Note whether parts are damaged."""
        try:
            for name, text in parts.items():
                seal.body("p", name, text)
        except CorruptRecord:
            if seal.address not in self._copied.damaged:
                self._copied.damaged.append(seal.address)

    async def compare(self, address: Address) -> None:
        """Compare one record in both storages."""
        first: str | None = None
        while True:
            wanted = Get(address, Range(first, limit=PARTS_AT_ONCE))
            ours, theirs = await asyncio.gather(self._source.perform(wanted), self._target.perform(wanted))
            if ours is None or address in self._skipped:
                return
            if theirs is None or _content(ours) != _content(theirs):
                if ours.written_at > self._source_began and (theirs is None or not _same_write(ours, theirs)):
                    self._copied.changed += 1
                else:
                    self.differing.append(address)
                return
            if len(ours.parts) < PARTS_AT_ONCE:
                self._copied.verified += 1
                return
            first = next(reversed(ours.parts)) + "\0"

    async def check_extra(self, address: Address) -> None:
        """Count or remove a record of the target that the source does not have."""
        if await self._source.perform(Get(address)) is not None:
            return
        theirs: Stored | None = await self._target.perform(Get(address))
        if theirs is None:
            return
        if self._remove:
            change = Change(write=self._target.ids(), delete=True, forget=True, tags=theirs.tags or KEEP)
            try:
                await self._target.perform(Apply(address, change, Guard(version=theirs.version)))
            except VersionChanged:
                # Another program has written it in the target just now.
                self._copied.extra += 1
            else:
                self._copied.removed += 1
        elif theirs.written_at > self._target_began:
            # It was copied by this call.
            self._copied.changed += 1
        else:
            self._copied.extra += 1


def _same_write(ours: Stored, theirs: Stored) -> bool:
    return ours.version.write == theirs.version.write


def _pieces(parts: Mapping[str, str]) -> list[dict[str, str | None]]:
    """Return parts in pieces; at least one piece, so that a record without parts is written too."""
    pieces: list[dict[str, str | None]] = [{}]
    size = 0
    for name, text in parts.items():
        if size > PIECE:
            pieces.append({})
            size = 0
        pieces[-1][name] = text
        size += len(text)
    return pieces


def _content(record: Stored) -> tuple[Any, ...]:
    return (
        record.head,
        record.fields,
        sorted(record.tags),
        record.parts,
        # The clocks of the storages differ, so the times themselves cannot be compared.
        record.deadline is None,
        record.expires_at is None,
        record.queue,
    )
