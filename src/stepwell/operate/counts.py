"""Counts of all conversations and runs of a storage."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple, TypeVar

from stepwell import Storage
from stepwell.engine import RUNS, TURNS, ReservedNamespace, StateCount, decode_namespace, encode_namespace
from stepwell.errors import Unsupported
from stepwell.nodes.engine import flow_of_index
from stepwell.operate.records import Count, bots, counted
from stepwell.operate.run_list import RunCount, run_counts

__all__ = ["AllCounts", "TurnCount", "all_counts", "joined", "state_counts"]


class TurnCount(NamedTuple):
    """The conversations with an agent in one state."""

    #: The name of their ``Turns``.
    name: str
    state: str
    conversations: int
    #: The time of the oldest last write among them; ``None`` if it is not known.
    oldest: float | None
    #: Whether there are more than ``conversations``.
    more: bool = False


class AllCounts(NamedTuple):
    """Conversations by bot, flow and state, runs by flow and status, and conversations of turns by name and state."""

    states: list[Count]
    runs: list[RunCount]
    #: Whether all records were counted.
    complete: bool
    #: Empty for a storage that cannot count.
    turns: tuple[TurnCount, ...] = ()

    @property
    def has_oldest(self) -> bool:
        """Whether all counts have the time of the oldest write."""
        return None not in {each.oldest for each in self._all}

    @property
    def has_more(self) -> bool:
        """Whether there are more records than some counts say."""
        return any(each.more for each in self._all)

    @property
    def _all(self) -> list[Count | RunCount | TurnCount]:
        return [*self.states, *self.runs, *self.turns]


async def all_counts(storage: Storage, *, limit: int, oldest: bool = False) -> AllCounts:
    """Count everything. Of a storage that cannot count, up to ``limit`` records of each bot and runs are read.

    With ``oldest``, the counts are exact and have the times of the oldest writes, which takes longer.
    """
    await storage.ensure_open()
    with suppress(Unsupported):
        return _grouped(storage, await storage.counts(oldest=oldest))
    states, complete = await _read_states(storage, limit)
    runs, whole = await run_counts(storage, limit=limit)
    return AllCounts(states, runs, complete and whole)


async def state_counts(storage: Storage, *, limit: int) -> tuple[list[Count], bool]:
    """Count the conversations with the times of the oldest writes, and return whether all were counted."""
    await storage.ensure_open()
    with suppress(Unsupported):
        return _grouped(storage, await storage.counts(oldest=True)).states, True
    return await _read_states(storage, limit)


def joined(counts: AllCounts, earlier: AllCounts) -> AllCounts:
    """Add the times of the oldest writes from earlier exact counts, and their numbers for states with ``more``."""
    states = {each[:3]: each for each in earlier.states}
    runs = {each[:2]: each for each in earlier.runs}
    turns = {each[:2]: each for each in earlier.turns}
    return counts._replace(
        states=[_newer(each, states.get(each[:3])) for each in counts.states],
        runs=[_newer(each, runs.get(each[:2])) for each in counts.runs],
        turns=tuple(_newer(each, turns.get(each[:2])) for each in counts.turns),
    )


_Counted = TypeVar("_Counted", Count, RunCount, TurnCount)


def _newer(count: _Counted, earlier: _Counted | None) -> _Counted:
    if earlier is None or count.oldest is not None:
        return count
    return earlier if count.more else count._replace(oldest=earlier.oldest)


async def _read_states(storage: Storage, limit: int) -> tuple[list[Count], bool]:
    states: list[Count] = []
    complete = True
    for bot in await bots(storage):
        found, whole = await counted(storage, bot, limit=limit)
        states += found
        complete = complete and whole
    return states, complete


def _grouped(storage: Storage, rows: list[StateCount]) -> AllCounts:
    namespace = encode_namespace(RUNS, storage.limits)
    states: list[Count] = []
    found: dict[tuple[str, str], RunCount] = {}
    turns = [
        TurnCount(row.flow or "", row.state or "", row.records, row.oldest, row.more)
        for row in rows
        if row.namespace == TURNS
    ]
    for row in rows:
        if row.namespace == namespace:
            flow = "" if row.flow is None else flow_of_index(row.flow)[0]
            # A record that has no position yet has no status in the index.
            status = row.state or "unknown"
            # Revisions of a flow are separate rows.
            known = found.get((flow, status), RunCount(flow, status, 0, row.oldest))
            times = [each for each in (known.oldest, row.oldest) if each is not None]
            found[flow, status] = RunCount(
                flow, status, known.runs + row.records, min(times, default=None), known.more or row.more
            )
        elif not isinstance(bot := decode_namespace(row.namespace), ReservedNamespace):
            states.append(Count(bot, row.flow, row.state, row.records, row.oldest, row.more))
    ordered = sorted(states, key=lambda each: (each.bot, each.flow or "", each.state or ""))
    return AllCounts(ordered, [found[at] for at in sorted(found)], True, tuple(sorted(turns)))
