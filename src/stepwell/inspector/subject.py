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


class Subject:
    """What one inspector shows, with the last counts."""

    def __init__(self, storage: Storage, flows: KnownFlows) -> None:
        self.storage: Storage = storage
        self.flows: KnownFlows = flows
        self._counts: AllCounts | None = None
        self._fresh_until: float = 0.0
        self._counting = asyncio.Lock()

    async def counts(self) -> AllCounts:
        """Return the counts of conversations and runs; all pages share one reading."""
        async with self._counting:
            started = time.monotonic()
            if self._counts is None or started >= self._fresh_until:
                self._counts = await all_counts(self.storage, limit=COUNTED)
                now = time.monotonic()
                self._fresh_until = now + KEPT * (now - started)
            return self._counts
