"""The end of a log: which number is next, and the writes that depend on it.

A writer that knows the version of the record and the next number appends with one write, which is refused if the
version has changed. After a few refusals it claims the record and sets the field ``turn``: all other writers then wait
for the claim, so that each of them gets its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple, TypeAlias

from stepwell.codec import Seal
from stepwell.codec.json import replaced
from stepwell.errors import (
    AlreadyHeld,
    Busy,
    Conflict,
    NotReplicated,
    OutcomeUnknown,
    RecordExists,
    StepwellError,
    TooLarge,
    VersionChanged,
)
from stepwell.log.appends import AppendQueue, LogOptions
from stepwell.log.names import LAST, entries, names_of, number_of
from stepwell.record import KEEP, NOTHING, Address, Change, Stored, Version
from stepwell.slot import Slot
from stepwell.slot.waiters import held_tokens
from stepwell.storage import Applied, Apply, Get, Guard, Storage

__all__ = ["Known", "Tail", "tail_of"]

#: How often a write may be refused before it claims the record.
MOST_REFUSALS: Final = 4
#: How often a write is sent if there is no answer, each time for as long as the storage's ``patience``.
MOST_TRIES: Final = 2
#: The field with the marks.
_MARKS: Final = "updates"
#: How many logs of a storage are remembered.
MOST_KNOWN: Final = 1000
#: How many appends in handlers are remembered. An update that comes again has appended shortly before its process died.
MOST_MARKS: Final = 100
#: Bytes of the field ``turn``, which a log at its limit may have too.
_ROOM_FOR_TURN: Final = 100
#: Seconds after which the claim of a process that was killed ends.
LEASE: Final = 10.0


class Known(NamedTuple):
    """The end of a log in one version of its record."""

    #: ``None``: there is no record.
    version: Version | None = None
    #: The number of the next entry.
    next: int = 1
    #: The last number that ``pop`` has removed: smaller numbers may be missing.
    gap: int = 0
    #: Another writer has claimed the record.
    turn: bool = False
    #: Name and text of the last entry, if it was just read.
    last: tuple[str, str] | None = None
    #: The marks of the last appends in handlers, with the numbers of their entries.
    marks: Mapping[str, range] = NOTHING
    #: Bytes of the field with the marks.
    room: int = 0


#: Returns the change of a write, or ``None`` if there is nothing to write.
Making: TypeAlias = Callable[[Known], "Change | None"]


class Tail:
    """The end of one log, and its writes in this process, which are made one at a time."""

    def __init__(self, storage: Storage, namespace: str, key: Any) -> None:
        self.storage: Storage = storage
        self._place = namespace, key
        self.address: Address = storage.address(namespace, key)
        self.seal: Seal = storage.seal(self.address)
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()
        #: The claim of ``Log.claim``, and the lock for the tasks that write within it.
        self._slot: Slot | None = None
        self._slot_lock = asyncio.Lock()
        self._known: Known | None = None
        self._turn = self.seal.fields({"turn": True})
        self._marks_name = self.seal.name(_MARKS)
        self.appends: AppendQueue = AppendQueue(self)

    @property
    def idle(self) -> bool:
        """Whether no write is under way."""
        return self.appends.idle and not self._lock.locked()

    async def append(
        self, appends: Sequence[tuple[Sequence[bytes], str | None]], options: LogOptions, slot: Slot | None = None
    ) -> list[range]:
        """Append the values of several calls, each with its mark, and return their numbers. The caller has the lock.

        An append whose mark is known was made before, and is not made again.
        """
        numbers: list[range] = []

        def make(known: Known) -> Change | None:
            if known.last is not None:
                # Entries of two keys in one log could not be read by any process.
                self.seal.check_key("p", *known.last)
            numbers.clear()
            marks, bodies = dict(known.marks), list[bytes]()
            for values, mark in appends:
                first = known.next + len(bodies)
                found = marks.get(mark) if mark is not None else None
                numbers.append(found or range(first, first + len(values)))
                if found is None:
                    bodies += values
                    if mark is not None:
                        marks[mark] = numbers[-1]
            if not bodies:
                return None
            write = self.storage.ids()
            parts = self.entry_parts(known.next, bodies, write)
            return self.change(known, options, {}, marks, write=write, parts=parts)

        try:
            await self._write(make, options, slot)
        except TooLarge as error:
            raise TooLarge(f"the log {self.address.text}", error.size, error.limit) from None
        return numbers

    def entry_parts(self, first: int, bodies: Sequence[bytes], write: str) -> dict[str, str]:
        """Return the parts with these values for a write, numbered from ``first``."""
        names = names_of(first, len(bodies), write) if bodies else ()
        return {name: self.seal.seal_body("p", name, body) for name, body in zip(names, bodies, strict=True)}

    def with_entries(self, change: Change, stored: Stored | None, bodies: Sequence[bytes]) -> Change:
        """Return a change of the record that appends values too. ``stored``: the record, read with its last entry."""
        parts = self.entry_parts(self.known_of(stored).next, bodies, change.write)
        return replaced(change, parts={**change.parts, **parts})

    def change(
        self, known: Known, options: LogOptions, fields: dict[str, Any], marks: Mapping[str, range], **change: Any
    ) -> Change:
        """Return a change of the record of the log that sets these fields, and the marks if they differ."""
        room = known.room
        if marks != known.marks:
            kept = list(marks.items())[-MOST_MARKS:]
            fields = {**fields, _MARKS: [(mark, numbers.start, len(numbers)) for mark, numbers in kept]}
        sealed = self.seal.fields(fields) if fields else NOTHING
        if marks != known.marks:
            room = self._room(sealed)
        tags = options.tags if known.version is None and options.tags else KEEP
        expiry = KEEP if options.ttl is None else options.ttl
        # The limit is for the entries.
        return Change(set=sealed, tags=tags, expiry=expiry, limit=options.limit + room, **change)

    def _room(self, fields: Mapping[str, str]) -> int:
        """Return the bytes of the field with the marks."""
        text = fields.get(self._marks_name)
        return 0 if text is None else len(self._marks_name) + len(text)

    @property
    def claimed_here(self) -> bool:
        """Whether this task, or the task that started it, has claimed the log."""
        return self._slot is not None and self._slot.guard.token in held_tokens.get()

    async def append_claimed(self, bodies: Sequence[bytes], mark: str | None, options: LogOptions) -> range:
        """Append values within the claim of this task, and return their numbers."""
        async with self._slot_lock:
            return (await self.append([(bodies, mark)], options, self._slot))[0]

    async def write(self, make: Making, options: LogOptions, *, fresh: bool = False) -> None:
        """Write a change that depends on the end of the log. ``fresh``: read the end before, with the last entry."""
        if self.claimed_here:
            async with self._slot_lock:
                await self._write(make, options, self._slot, fresh)
        else:
            async with self.locked(options.wait):
                await self._write(make, options, None, fresh)

    @asynccontextmanager
    async def claim(self, options: LogOptions) -> AsyncIterator[None]:
        """Claim the log for this task and the tasks that it starts."""
        if self.claimed_here:
            raise AlreadyHeld(self.address.text)
        async with self.locked(options.wait), self._claimed(options) as slot:
            self._slot = slot
            try:
                yield
            finally:
                self._slot = None

    @asynccontextmanager
    async def locked(self, wait: float) -> AsyncIterator[None]:
        """Wait for the other writes of this process. Raises ``Busy``."""
        try:
            async with asyncio.timeout(wait):
                await self._lock.acquire()
        except TimeoutError:
            raise Busy(self.address.text, wait) from None
        try:
            yield
        finally:
            self._lock.release()

    async def _write(self, make: Making, options: LogOptions, slot: Slot | None, fresh: bool = False) -> None:
        if slot is not None:
            return await self._write_claimed(make, slot, fresh)
        for _ in range(MOST_REFUSALS):
            known = await self._known_or_read(fresh)
            if known.turn:
                break
            change = make(known)
            if change is None:
                return None
            guard = Guard(absent=True) if known.version is None else Guard(version=known.version)
            if await self._applied(known, change, Apply(self.address, change, guard)):
                return None
        async with self._claimed(options) as claimed:
            return await self._write_claimed(make, claimed, fresh, last=True)

    @asynccontextmanager
    async def _claimed(self, options: LogOptions) -> AsyncIterator[Slot]:
        """Claim the record, and let all other writers wait for that."""
        async with Slot(self.storage, *self._place, wait=options.wait, lease=LEASE) as slot:
            tags = options.tags if not slot.found and options.tags else KEEP
            limit = options.limit + _ROOM_FOR_TURN + self._room(slot.texts)
            begun = await self._perform(
                Change(self.storage.ids(), fresh=not slot.found, set=self._turn, tags=tags, limit=limit), slot
            )
            slot.base, self._known = begun.base, None
            try:
                yield slot
            finally:
                if self._turn_stays():
                    self._known = None
                    # If this fails, the next writer claims the record too, and removes it.
                    with suppress(StepwellError):
                        await self._perform(Change(self.storage.ids(), unset=tuple(self._turn), limit=limit), slot)

    def _turn_stays(self) -> bool:
        return self._known is None or self._known.turn

    async def _write_claimed(self, make: Making, slot: Slot, fresh: bool, *, last: bool = False) -> None:
        """Write within a claim. ``last``: other writers need not wait for it any more."""
        while True:
            known = await self._known_or_read(fresh)
            change = make(known)
            if change is None:
                return
            if last:
                change = replaced(change, unset=tuple(self._turn))
            guard = replaced(slot.guard, version=known.version)
            if await self._applied(known, change, Apply(self.address, change, guard, "keep", LEASE)):
                return

    async def _perform(self, change: Change, slot: Slot) -> Applied:
        applied: Applied = await self.storage.perform(Apply(self.address, change, slot.guard, "keep", LEASE))
        return applied

    async def _known_or_read(self, fresh: bool) -> Known:
        """Return the end of the log as this process knows it, or read it."""
        if self._known is None or fresh:
            self._known = await self.read()
        return self._known

    async def read(self) -> Known:
        """Read the end of the log."""
        return self.known_of(await self.storage.perform(Get(self.address, LAST)))

    def known_of(self, stored: Stored | None) -> Known:
        """Return the end of the log in a record that was read with its last entry."""
        if stored is None:
            return Known()
        data = self.seal.data(stored.fields)
        last = next(iter((stored.parts or {}).items()), None)
        following = max(number_of(last[0]) + 1 if last else 1, data.get("next", 1))
        marks, room = _marks_of(data), self._room(stored.fields)
        return Known(stored.version, following, data.get("gap", 0), "turn" in data, last, marks, room)

    async def _applied(self, known: Known, change: Change, apply: Apply) -> bool:
        """Write a change, and return whether it was applied: not if the record has changed since it was read."""
        self._known = None
        unknown: OutcomeUnknown | None = None
        for _ in range(MOST_TRIES):
            try:
                applied: Applied = await self.storage.perform(apply)
            except NotReplicated:
                raise
            except OutcomeUnknown as error:
                # The same write again: it is refused if the first one was applied, because that changed the version.
                unknown = unknown or error
            except Conflict as refused:
                if unknown is not None and await self._was_applied(known, change, unknown):
                    return True
                if isinstance(refused, VersionChanged | RecordExists):
                    return False
                raise
            except StepwellError as error:
                if unknown is None:
                    raise
                raise unknown from error
            else:
                self._known = self._after(known, change, applied.version)
                return True
        assert unknown is not None
        raise unknown

    def _after(self, known: Known, change: Change, version: Version) -> Known:
        """Return the end of the log after a change."""
        data = self.seal.data(change.set)
        following = data.get("next", known.next + len(change.parts))
        marks, room = (_marks_of(data), self._room(change.set)) if _MARKS in data else (known.marks, known.room)
        turn = known.turn and not change.unset
        return Known(version, following, data.get("gap", known.gap), turn, marks=marks, room=room)

    async def _was_applied(self, known: Known, change: Change, unknown: OutcomeUnknown) -> bool:
        """Return whether a write without an answer was applied, after it was refused. Raises if that is not known."""
        try:
            wanted = entries(known.next - 1, known.next + 1)
            stored: Stored | None = await self.storage.perform(Get(self.address, wanted))
        except StepwellError as error:
            raise unknown from error
        if (None if stored is None else stored.version) == known.version:
            return False
        if stored is not None:
            if stored.version.write == change.write:
                return True
            if change.parts and stored.parts:
                # Another writer has this number, unless the name has the id of this write.
                return next(iter(change.parts)) in stored.parts
        raise unknown


def _marks_of(data: Mapping[Any, Any]) -> dict[str, range]:
    return {mark: range(first, first + count) for mark, first, count in data.get(_MARKS, ())}


def tail_of(storage: Storage, namespace: str, key: Any, address: Address) -> Tail:
    """Return the end of a log, which all ``Log`` objects of a storage share.

    With it a record that has a log beside its other parts appends to the log in one write with them.

    Example::

        from stepwell.engine import LAST_ENTRY, LOGS, Get, tail_of

        log = Log(storage, "chats", 42)
        await log.append("Hello")
        tail = tail_of(storage, LOGS, ("chats", 42), log.address)
        stored = await storage.perform(Get(log.address, LAST_ENTRY))
        assert tail.known_of(stored).next == 2
    """
    tails = storage.tails
    tail: Tail | None = tails.pop(address, None)
    if tail is None or tail.loop is not asyncio.get_running_loop():
        tail = Tail(storage, namespace, key)
    # The dict is in the order of use.
    tails[address] = tail
    if len(tails) > MOST_KNOWN:
        oldest = next(iter(tails))
        if tails[oldest].idle:
            del tails[oldest]
    return tail
