"""The storage and the flows that an inspector shows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Generic, TypeVar

from stepwell import Storage
from stepwell.inspector.flows import KnownFlows
from stepwell.inspector.problems import Seen, look
from stepwell.operate.counts import AllCounts, all_counts, joined
from stepwell.operate.run_list import NodeCount, node_counts

__all__ = ["Subject"]

#: How many records of a bot, and runs, are read for the counts of a storage that cannot count.
COUNTED = 20_000
#: How many runs of each status are read to count them by node.
COUNTED_AT_NODES = 2_000
#: A result is kept for this many times the time that it took, so that open pages do not load the storage.
KEPT = 20
#: Seconds that a page waits for a result.
PROMPT = 0.25

T = TypeVar("T")


class Reading(Generic[T]):
    """A slow reading of the storage that all open pages share: it calls ``read`` when a page needs its result."""

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._last: T | None = None
        self._fresh_until: float = 0.0
        self._reading: asyncio.Task[None] | None = None

    async def get(self, *, wait: float | None = None) -> T | None:
        """Return the last result; ``None`` while the first one takes long.

        ``wait``: how many seconds to wait for a new one; by default ``PROMPT``.
        """
        if self._reading is None and time.monotonic() >= self._fresh_until:
            self._reading = asyncio.create_task(self._renew())
            # A page that does not wait for it does not see its error.
            self._reading.add_done_callback(lambda task: task.cancelled() or task.exception())
        if (task := self._reading) is not None:
            await asyncio.wait({task}, timeout=PROMPT if wait is None else wait)
            if task.done():
                if self._reading is task:
                    self._reading = None
                task.result()
        return self._last

    async def close(self) -> None:
        """Stop reading."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})

    async def _renew(self) -> None:
        started = time.monotonic()
        self._last = await self._read()
        now = time.monotonic()
        self._fresh_until = now + KEPT * (now - started)


class Subject:
    """What one inspector shows, with the counts that its pages share."""

    def __init__(self, storage: Storage, flows: KnownFlows) -> None:
        self.storage: Storage = storage
        self.flows: KnownFlows = flows
        #: Runs by node and status, and whether all were counted.
        self.nodes: Reading[tuple[list[NodeCount], bool]] = Reading(self._count_nodes)
        #: The processes and the problems.
        self.seen: Reading[Seen] = Reading(partial(look, storage))
        self._quick: Reading[AllCounts] = Reading(partial(self._count, oldest=False))
        self._exact: Reading[AllCounts] = Reading(partial(self._count, oldest=True))

    async def counts(self, *, wait: float | None = None) -> AllCounts | None:
        """Return the conversations by state and the runs by status; ``None`` while the first counts take long.

        ``wait``: how many seconds to wait for new ones; by default ``PROMPT``.

        The times of the oldest writes, and exact counts of a storage that counts only a part at first, follow when they
        have been read in the background.
        """
        counts = await self._quick.get(wait=wait)
        if counts is None or counts.has_oldest:
            return counts
        exact = await self._exact.get(wait=0)
        return counts if exact is None else joined(counts, exact)

    async def close(self) -> None:
        """Stop counting."""
        await self._quick.close()
        await self._exact.close()
        await self.nodes.close()
        await self.seen.close()

    async def _count(self, *, oldest: bool) -> AllCounts:
        return await all_counts(self.storage, limit=COUNTED, oldest=oldest)

    async def _count_nodes(self) -> tuple[list[NodeCount], bool]:
        return await node_counts(self.storage, limit=COUNTED_AT_NODES)
