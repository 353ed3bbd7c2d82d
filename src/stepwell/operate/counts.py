"""Counts of all conversations and runs of a storage."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from stepwell.codec import decode_namespace, encode_namespace
from stepwell.codec.seal import flow_of_index
from stepwell.errors import Unsupported
from stepwell.operate.records import Count, bots, counts
from stepwell.operate.run_list import RunCount, run_counts
from stepwell.record import RUNS, ReservedNamespace
from stepwell.storage import Storage
from stepwell.storage.listing import StateCount

__all__ = ["AllCounts", "all_counts"]


class AllCounts(NamedTuple):
    """Conversations by bot, flow and state, and runs by flow and status."""

    states: list[Count]
    runs: list[RunCount]
    #: Whether all records were counted.
    complete: bool


async def all_counts(storage: Storage, *, limit: int) -> AllCounts:
    """Count everything. Of a storage that cannot count, up to ``limit`` records of each bot and runs are read."""
    await storage.ensure_open()
    with suppress(Unsupported):
        return _grouped(await storage.counts(), encode_namespace(RUNS, storage.limits))
    states: list[Count] = []
    complete = True
    for bot in await bots(storage):
        found, whole = await counts(storage, bot, limit=limit)
        states += found
        complete = complete and whole
    runs, whole = await run_counts(storage, limit=limit)
    return AllCounts(states, runs, complete and whole)


def _grouped(rows: list[StateCount], runs: str) -> AllCounts:
    states: list[Count] = []
    found: dict[tuple[str, str], RunCount] = {}
    for row in rows:
        if row.namespace == runs:
            flow = "" if row.flow is None else flow_of_index(row.flow)[0]
            # Runs of an earlier release have no status in the index.
            status = row.state or "unknown"
            # Revisions of a flow are separate rows.
            known = found.get((flow, status), RunCount(flow, status, 0, row.oldest))
            found[flow, status] = RunCount(flow, status, known.runs + row.records, min(known.oldest, row.oldest))
        elif not isinstance(bot := decode_namespace(row.namespace), ReservedNamespace):
            states.append(Count(bot, row.flow, row.state, row.records, row.oldest))
    ordered = sorted(states, key=lambda each: (each.bot, each.flow or "", each.state or ""))
    return AllCounts(ordered, [found[at] for at in sorted(found)], True)
