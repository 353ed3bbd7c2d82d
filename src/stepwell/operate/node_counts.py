"""Counts of the runs at each node of their flows."""

from __future__ import annotations

from typing import Final, NamedTuple

from stepwell import Storage
from stepwell.operate.run_list import DamagedRun, RunFilter, listed_runs

__all__ = ["AT_NODES", "NodeCount", "node_counts"]

#: The statuses of runs that are at a node.
AT_NODES: Final = ("running", "parked", "sleeping", "paused", "failed", "stuck")


class NodeCount(NamedTuple):
    """The runs of a flow that are at one node with one status."""

    flow: str
    #: The path of the node.
    node: str
    status: str
    runs: int
    #: The time of the oldest last write among them.
    oldest: float


async def node_counts(storage: Storage, *, limit: int) -> tuple[list[NodeCount], bool]:
    """Count the runs by flow, node and status, and return whether all were counted.

    No index has the node of a run, so it reads up to ``limit`` runs of each status.
    """
    found: dict[tuple[str, str, str], NodeCount] = {}
    complete = True
    for status in AT_NODES:
        async for run, looked, _ in listed_runs(storage, RunFilter(statuses=(status,))):
            if looked > limit:
                complete = False
                break
            if isinstance(run, DamagedRun) or run.node is None:
                continue
            at = run.flow, run.node, run.status
            known = found.get(at, NodeCount(*at, 0, run.updated_at))
            found[at] = NodeCount(*at, known.runs + 1, min(known.oldest, run.updated_at))
    return [found[at] for at in sorted(found)], complete
