"""The storage and the flows that an inspector shows."""

from __future__ import annotations

import asyncio
import time

from stepwell.inspector.flows import KnownFlows
from stepwell.operate.counts import AllCounts, all_counts
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
        self._counts: AllCounts | None = None
        self._fresh_until: float = 0.0
        self._counting: asyncio.Task[None] | None = None

    async def counts(self) -> AllCounts | None:
        """Return the last counts of conversations and runs; ``None`` while the first ones take long.

        All pages share one reading.
        """
        if self._counting is None and time.monotonic() >= self._fresh_until:
            self._counting = asyncio.create_task(self._count())
        if (task := self._counting) is not None:
            await asyncio.wait({task}, timeout=PROMPT)
            if task.done():
                if self._counting is task:
                    self._counting = None
                task.result()
        return self._counts

    async def close(self) -> None:
        """Stop counting."""
        if self._counting is not None:
            self._counting.cancel()
            await asyncio.wait({self._counting})

    async def _count(self) -> None:
        started = time.monotonic()
        self._counts = await all_counts(self.storage, limit=COUNTED)
        now = time.monotonic()
        self._fresh_until = now + KEPT * (now - started)
