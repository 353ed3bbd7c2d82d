"""The storage and the flows that an inspector shows."""

from __future__ import annotations

from stepwell.inspector.flows import KnownFlows
from stepwell.inspector.reading import Reading
from stepwell.operate.counts import AllCounts, all_counts
from stepwell.operate.node_counts import NodeCount, node_counts
from stepwell.storage import Storage

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
        #: Conversations by state, and runs by status.
        self.counts: Reading[AllCounts] = Reading(self._count)
        #: Runs by node and status, and whether all were counted.
        self.nodes: Reading[tuple[list[NodeCount], bool]] = Reading(self._count_nodes)

    async def close(self) -> None:
        """Stop counting."""
        await self.counts.close()
        await self.nodes.close()

    async def _count(self) -> AllCounts:
        return await all_counts(self.storage, limit=COUNTED)

    async def _count_nodes(self) -> tuple[list[NodeCount], bool]:
        return await node_counts(self.storage, limit=COUNTED_AT_NODES)
