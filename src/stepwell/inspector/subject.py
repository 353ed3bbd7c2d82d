"""The storage and the flows that an inspector shows."""

from __future__ import annotations

from functools import partial

from stepwell import Storage
from stepwell.inspector.flows import KnownFlows
from stepwell.inspector.reading import Reading
from stepwell.operate.counts import AllCounts, all_counts, joined
from stepwell.operate.node_counts import NodeCount, node_counts

__all__ = ["Subject"]

#: How many records of a bot, and runs, are read for the counts of a storage that cannot count.
COUNTED = 20_000
#: How many runs of each status are read to count them by node.
COUNTED_AT_NODES = 2_000


class Subject:
    """What one inspector shows, with the counts that its pages share."""

    def __init__(self, storage: Storage, flows: KnownFlows) -> None:
        self.storage: Storage = storage
        self.flows: KnownFlows = flows
        #: Runs by node and status, and whether all were counted.
        self.nodes: Reading[tuple[list[NodeCount], bool]] = Reading(self._count_nodes)
        self._quick: Reading[AllCounts] = Reading(partial(self._count, oldest=False))
        self._exact: Reading[AllCounts] = Reading(partial(self._count, oldest=True))

    async def counts(self) -> AllCounts | None:
        """Return the conversations by state and the runs by status; ``None`` while the first counts take long.

        The times of the oldest writes, and exact counts of a storage that counts only a part at first, follow when they
        have been read in the background.
        """
        counts = await self._quick.get()
        if counts is None or counts.has_oldest:
            return counts
        exact = await self._exact.get(wait=0)
        return counts if exact is None else joined(counts, exact)

    async def close(self) -> None:
        """Stop counting."""
        await self._quick.close()
        await self._exact.close()
        await self.nodes.close()

    async def _count(self, *, oldest: bool) -> AllCounts:
        return await all_counts(self.storage, limit=COUNTED, oldest=oldest)

    async def _count_nodes(self) -> tuple[list[NodeCount], bool]:
        return await node_counts(self.storage, limit=COUNTED_AT_NODES)
