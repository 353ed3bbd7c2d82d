"""The storage and the flows that an inspector shows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

from stepwell.inspector.flows import KnownFlows
from stepwell.operate.counts import AllCounts, all_counts, joined
from stepwell.storage import Storage

__all__ = ["Subject"]

#: How many records of a bot, and runs, are read for the counts of a storage that cannot count.
COUNTED = 20_000
#: Counts are kept for this many times the time that they took, so that open pages do not load the storage.
KEPT = 20
#: Seconds that a page waits for counts.
PROMPT = 0.2


class Subject:
    """What one inspector shows, with the last counts."""

    def __init__(self, storage: Storage, flows: KnownFlows) -> None:
        self.storage: Storage = storage
        self.flows: KnownFlows = flows
        self._quick = Reading(partial(self._count, oldest=False))
        self._exact = Reading(partial(self._count, oldest=True))

    async def counts(self) -> AllCounts | None:
        """Return the last counts of conversations and runs; ``None`` while the first ones take long.

        The times of the oldest writes, and exact counts of a storage that counts only a part at first, are read in the
        background. All pages share these readings.
        """
        counts = await self._quick.last(PROMPT)
        if counts is None or counts.has_oldest:
            return counts
        exact = await self._exact.last(0)
        return counts if exact is None else joined(counts, exact)

    async def close(self) -> None:
        """Stop counting."""
        for reading in (self._quick, self._exact):
            await reading.close()

    async def _count(self, *, oldest: bool) -> AllCounts:
        return await all_counts(self.storage, limit=COUNTED, oldest=oldest)


class Reading:
    """The last result of a reading that takes long. A new one starts when it is asked for and the last one is old."""

    def __init__(self, read: Callable[[], Awaitable[AllCounts]]) -> None:
        self._read = read
        self._last: AllCounts | None = None
        self._fresh_until: float = 0.0
        self._task: asyncio.Task[None] | None = None

    async def last(self, patience: float) -> AllCounts | None:
        """Return the last result, after waiting up to ``patience`` seconds for a new one if it is due."""
        if self._task is None and time.monotonic() >= self._fresh_until:
            self._task = asyncio.create_task(self._renew())
        if (task := self._task) is not None:
            await asyncio.wait({task}, timeout=patience)
            if task.done():
                if self._task is task:
                    self._task = None
                task.result()
        return self._last

    async def close(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _renew(self) -> None:
        started = time.monotonic()
        self._last = await self._read()
        now = time.monotonic()
        self._fresh_until = now + KEPT * (now - started)
