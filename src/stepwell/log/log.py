"""An ordered log: append values, read and follow them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from itertools import count
from typing import Any, Final, NamedTuple

from stepwell._backoff import backoff, jittered
from stepwell.codec import Seal
from stepwell.codec.large import LARGE, in_thread, is_large
from stepwell.errors import CorruptRecord, StorageUnavailable
from stepwell.log.appends import MOST_VALUES, LogOptions, PendingAppend
from stepwell.log.names import entries, log_tag, number_of
from stepwell.log.tail import Known, Tail, tail_of
from stepwell.log.update import appends_of_update
from stepwell.options import check, check_instance, check_number, check_whole
from stepwell.record import LOGS, Address, Change, Range, ReservedNamespace, Stored, Version
from stepwell.storage import Apply, Get, Storage

__all__ = ["Log", "LogEntry"]

logger: logging.Logger = logging.getLogger(__name__)

#: How many entries ``follow`` reads at once.
PAGE: Final = 200
#: Seconds between two reads of ``follow`` without a notice: the first pause, and the longest.
POLLS: Final = (0.02, 1.0)
#: Seconds between two reads of ``follow`` while the storage is not available.
RETRIES: Final = (0.1, 5.0)
#: How often ``compact`` reads the log before it claims it.
MOST_ROUNDS: Final = 4


class LogEntry(NamedTuple):
    """An entry of a log.

    Example::

        log = Log(storage, "chats", 42)
        await log.append("Hello")
        assert await log.read() == [LogEntry(1, "Hello")]
    """

    #: Numbers start at 1 and grow. They are never reused, so some may be missing.
    number: int
    value: Any


class Log:
    """Values in the order in which they were appended, kept in a storage under a name and a key.

    Any number of processes may append to a log, read it and follow it. It is a record of its own, which no
    conversation or run has.

    ``limit``: the maximum size of all entries in bytes (default: ``storage.limits.run``, 64 MB). ``ttl``: the log
    expires this many seconds after its last write. ``tags`` are stored when the log is created; with
    ``tags=("user:42",)`` and a bot's name as ``namespace``, ``fsm.forget(user=42)`` deletes the log too. ``wait``: how
    many seconds to wait for a claim of another task or process.

    To use it without an event loop, write ``sync(log.append(...))``.

    Example::

        log = Log(storage, "chats", 42)
        await log.append({"role": "user", "text": "Hello"})
        assert [entry.value["text"] for entry in await log.read()] == ["Hello"]
    """

    def __init__(
        self,
        storage: Storage,
        namespace: str,
        key: Any,
        *,
        limit: int | None = None,
        ttl: float | None = None,
        tags: tuple[str, ...] = (),
        wait: float = 60.0,
    ) -> None:
        check_whole(limit, "limit must be a number of bytes or None, not {}", least=1, optional=True)
        check_number(ttl, "ttl must be a positive number of seconds or None, not {}", above=0, optional=True)
        check_instance(tags, tuple, "tags must be a tuple of str, not {}")
        self.storage: Storage = storage
        self._place: tuple[str, Any] = (namespace, key)
        if not isinstance(namespace, ReservedNamespace):
            # Checks the name.
            storage.address(namespace, key)
            self._place = (LOGS, (namespace, key))
        self.address: Address = storage.address(*self._place)
        self._seal: Seal = storage.seal(self.address)
        self._options = LogOptions(
            limit or storage.limits.run, ttl, tuple(log_tag(namespace, tag) for tag in tags), wait
        )
        # A notice is sent in clear, so it must not contain the key.
        digest = hashlib.sha256(self.address.text.encode("utf-8", "surrogatepass")).hexdigest()
        self._topic = f"log:{digest[:32]}"

    def __repr__(self) -> str:
        return f"<Log {self.address.text}>"

    async def append(self, *values: Any) -> range:
        """Append values in one write, and return their numbers.

        They get successive numbers, and are all stored or none of them. Appends of several tasks share a write.

        In the handler of an update, an append belongs to the update: the update is remembered as handled, and if its
        handler runs again because it failed or its process died, the same values are not appended again.

        Raises ``OutcomeUnknown`` if the server does not answer for longer than the storage's ``patience``.
        """
        if not values:
            return range(0)
        bodies = [await self._encoded(value) for value in values]
        tail = self._tail()
        # The library's own logs, such as streams, have their own way to repeat.
        update = appends_of_update() if self._place[0] == LOGS else None
        mark = None if update is None else update.mark(self.address, bodies)
        if tail.claimed_here:
            numbers = await tail.append_claimed(bodies, mark, self._options)
            self._notify()
            return numbers
        return await tail.appends.put(PendingAppend(bodies, self._options, self._notify, mark))

    async def read(
        self, *, after: int = 0, before: int | None = None, limit: int | None = None, reverse: bool = False
    ) -> list[LogEntry]:
        """Return the entries with numbers above ``after`` and below ``before``, at most ``limit``.

        With ``reverse`` the last ones come first. It is one round trip, and reads only these entries.
        """
        stored = await self._get(entries(after, before, limit=limit, reverse=reverse))
        return [] if stored is None else await self._decoded(stored)

    async def last(self) -> int:
        """Return the number of the last append, or 0. Its entry may have been removed."""
        return (await self._tail().read()).next - 1

    async def follow(self, *, after: int = 0) -> AsyncGenerator[LogEntry]:
        """Yield the entries with numbers above ``after``, and then new ones as they are appended, without an end.

        It continues when the storage is available again after an outage. To continue in another process, pass the
        number of the last entry that you have handled. Entries that are removed before they are read are left out.
        """
        news = asyncio.Event()
        stop_listening = self.storage.listen(self._topic, news.set)
        quiet = failures = 0
        try:
            while True:
                news.clear()
                try:
                    page = await self.read(after=after, limit=PAGE)
                except StorageUnavailable as error:
                    if error.final:
                        raise
                    failures += 1
                    if failures == 1:
                        logger.warning("%r cannot be read; it is followed again after the outage: %s", self, error)
                    await asyncio.sleep(jittered(backoff(failures, *RETRIES)))
                    continue
                failures = 0
                for entry in page:
                    after = entry.number
                    yield entry
                quiet = 0 if page else quiet + 1
                if len(page) < PAGE:
                    # A notice may be lost, so it polls too.
                    with suppress(TimeoutError):
                        async with asyncio.timeout(backoff(quiet, *POLLS)):
                            await news.wait()
        finally:
            stop_listening()

    async def pop(self) -> LogEntry | None:
        """Remove and return the last entry; ``None`` if there is none. Its number is not used again."""
        popped: LogEntry | None = None

        def make(known: Known) -> Change | None:
            nonlocal popped
            popped = None
            if known.last is None:
                return None
            name, text = known.last
            popped = LogEntry(number_of(name), self._seal.value("p", name, text))
            fields = {"next": known.next, "gap": max(known.gap, popped.number)}
            return self._removal(known, Range(name, name), fields, lambda first: first != number_of(name))

        await self._tail().write(make, self._options, fresh=True)
        return popped

    async def trim(self, *, keep: int) -> None:
        """Remove all entries but the last ``keep``."""
        check_whole(keep, "keep must be a number of entries, not {}", least=0)
        known, stored = await asyncio.gather(self._tail().read(), self._get(entries(0, limit=1)))
        cut = known.next - 1 - keep
        if stored is None or not stored.parts or number_of(next(iter(stored.parts))) > cut:
            return
        if keep and cut < known.gap:
            # Some numbers are missing, so the entries are counted.
            kept = await self.read(limit=keep, reverse=True)
            cut = kept[-1].number - 1 if len(kept) == keep else 0
        await self._drop(cut)

    async def compact(self, upto: int | LogEntry, with_: Sequence[Any] = ()) -> bool:
        """Replace the entries up to ``upto`` with others, such as a summary of them, in one write.

        Later entries stay. Return whether it was done: not if the entry ``upto`` is gone or has another value, because
        somebody else has removed or compacted it meanwhile. The new entries get the last of the numbers that become
        free.

        Example::

            log = Log(storage, "chats", 42)
            await log.append("Hello", "Good morning")
            entries = await log.read()
            await log.compact(entries[-1], with_=[{"role": "system", "text": "They have said hello."}])
        """
        last = upto.number if isinstance(upto, LogEntry) else upto
        check_whole(last, "compact(upto) takes a LogEntry or its number, not {}", least=1)
        check(len(with_) <= last, f"compact({last}, with_=...) replaces {last} entries with at most as many, not {{}}",
              len(with_))  # fmt: skip
        bodies = [await self._encoded(value) for value in with_]
        tail, rounds = self._tail(), count(1)
        while True:
            stored = await self._get(entries(last - 1, last + 1))
            if stored is None or not stored.parts:
                return False
            if isinstance(upto, LogEntry) and (await self._decoded(stored))[0] != upto:
                return False
            make = _Compaction(tail, self._options, stored.version, last, bodies)
            if next(rounds) > MOST_ROUNDS and not tail.claimed_here:
                # Others append without a pause.
                async with self.claim():
                    return await self.compact(upto, with_)
            await tail.write(make, self._options, fresh=True)
            if make.applied:
                self._notify()
                return True

    async def remove(self, number: int) -> bool:
        """Remove one entry, and return whether there was one of this number. Numbers are not used again."""
        check_whole(number, "remove() takes the number of an entry, not {}", least=1)
        one = entries(number - 1, number + 1)
        stored = await self._get(one)
        if stored is None or not stored.parts:
            return False

        def make(known: Known) -> Change | None:
            if known.version is None:
                return None
            fields = {"next": known.next, "gap": max(known.gap, number)}
            return self._removal(known, one, fields, lambda first: first != number)

        await self._tail().write(make, self._options)
        return True

    async def clear(self) -> None:
        """Remove all entries. Later entries get new numbers."""
        await self._drop((await self._tail().read()).next - 1)

    async def delete(self) -> None:
        """Delete the log. If it is created again, its numbers start at 1 again."""
        await self.storage.perform(Apply(self.address, Change(self.storage.ids(), delete=True)))

    def claim(self) -> AbstractAsyncContextManager[None]:
        """Let only this task, and the tasks that it starts, write to the log within ``async with``.

        Other tasks and processes wait, and raise ``Busy`` after their ``wait`` seconds. A write within the block raises
        ``LeaseLost`` if this process was stopped for more than 10 s and another one has claimed the log meanwhile.
        """
        return self._tail().claim(self._options)

    async def _drop(self, last: int) -> None:
        """Remove the entries up to a number, in several writes, so that none of them takes long."""
        drop = replace(entries(0, last + 1), limit=MOST_VALUES)

        def make(known: Known) -> Change | None:
            if known.version is None:
                return None
            # If there are no entries left, only this field has the next number.
            fields = {"next": known.next} if known.next == last + 1 else {}
            return self._removal(known, drop, fields, lambda first: first > last)

        while last > 0:
            stored = await self._get(replace(drop, limit=1))
            if stored is None or not stored.parts:
                return
            await self._tail().write(make, self._options)

    def _removal(self, known: Known, drop: Range, fields: dict[str, Any], keeps: Callable[[int], bool]) -> Change:
        """Return a change that removes entries. ``keeps``: whether to keep the mark of an append with this number."""
        kept = {mark: numbers for mark, numbers in known.marks.items() if keeps(numbers.start)}
        return self._tail().change(known, self._options, fields, kept, write=self.storage.ids(), drop=drop)

    def _tail(self) -> Tail:
        return tail_of(self.storage, *self._place, self.address)

    def _notify(self) -> None:
        self.storage.notify_soon(self._topic)

    async def _get(self, wanted: Range) -> Stored | None:
        stored: Stored | None = await self.storage.perform(Get(self.address, wanted))
        return stored

    async def _encoded(self, value: Any) -> bytes:
        limit = self.storage.limits.item
        if is_large(value):
            return (await in_thread(self._seal.json, value, limit)).encode()
        return self._seal.json(value, limit).encode()

    async def _decoded(self, stored: Stored) -> list[LogEntry]:
        parts = stored.parts or {}
        try:
            if sum(map(len, parts.values())) > LARGE:
                return await in_thread(_decoded, self._seal, parts)
            return _decoded(self._seal, parts)
        except CorruptRecord as error:
            await self.storage.quarantine(self.address, stored, error)
            raise


class _Compaction:
    """Makes the change of ``compact``, if the record still has the version in which the last entry was seen."""

    def __init__(self, tail: Tail, options: LogOptions, seen: Version, last: int, bodies: Sequence[bytes]) -> None:
        self._tail, self._options, self._seen = tail, options, seen
        self._last, self._bodies = last, bodies
        self.applied: bool = False

    def __call__(self, known: Known) -> Change | None:
        self.applied = known.version == self._seen
        if not self.applied:
            return None
        write = self._tail.storage.ids()
        parts = self._tail.entry_parts(self._last - len(self._bodies) + 1, self._bodies, write)
        # If no entries are left, only this field has the next number.
        fields = {"next": known.next} if known.next == self._last + 1 and not parts else {}
        kept = {mark: numbers for mark, numbers in known.marks.items() if numbers.start > self._last}
        return self._tail.change(
            known, self._options, fields, kept, write=write, drop=entries(0, self._last + 1), parts=parts
        )


def _decoded(seal: Seal, parts: Mapping[str, str]) -> list[LogEntry]:
    return [LogEntry(number_of(name), seal.value("p", name, text)) for name, text in parts.items()]
