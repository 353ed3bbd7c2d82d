"""The overview, and the flows with their counts."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from stepwell import Storage
from stepwell.errors import StepwellError
from stepwell.inspector.requests import Params, View
from stepwell.inspector.subject import COUNTED, COUNTED_AT_NODES, Subject
from stepwell.nodes import Schedules
from stepwell.operate.processes import processes
from stepwell.operate.records import bots, timers

__all__ = ["VIEWS"]

#: How many bots, overdue timers, processes and schedules are shown.
SHOWN = 50
#: How many of the next timers are shown.
NEXT = 6
#: Seconds after its time from which a timer is overdue: a bot that runs fires it within a second.
LATE = 60.0


async def overview(subject: Subject, params: Params) -> dict[str, Any]:
    """Return the counts per state and status, the next timers, and the schedules."""
    # At the same time, because counts may take as long as a page may wait.
    counted, rest = await asyncio.gather(subject.counts(), _rest_of_overview(subject.storage))
    return {
        # None while the first counts are made.
        "states": None if counted is None else [each._asdict() for each in counted.states],
        "runs": None if counted is None else [each._asdict() for each in counted.runs],
        "complete": counted is not None and counted.complete,
        "counted": COUNTED,
        **rest,
    }


async def _rest_of_overview(storage: Storage) -> dict[str, Any]:
    now = (storage.clock or time.time)()
    next_timers, overdue = [], []
    for bot in (await bots(storage))[:SHOWN]:
        next_timers += await timers(storage, bot, before=1e12, limit=NEXT)
        overdue += await timers(storage, bot, before=now - LATE, limit=SHOWN)
    return {
        "timers": [each._asdict() for each in sorted(next_timers, key=lambda each: each.deadline)[:NEXT]],
        "overdue": len(overdue),
        "processes": [each._asdict() for each in await processes(storage, limit=SHOWN)],
        "schedules": await _schedules(storage),
    }


async def _schedules(storage: Storage) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    try:
        async for each in Schedules(storage).list():
            found.append(
                {
                    "name": each.name,
                    "flow": each.flow,
                    "times": f"every {each.every:g} s" if each.cron is None else f"{each.cron} ({each.tz})",
                    "paused": each.paused,
                    "next": each.next.timestamp() if each.next else None,
                    "last": each.last.timestamp() if each.last else None,
                    "last_id": each.last_id,
                }
            )
            if len(found) == SHOWN:
                break
    except StepwellError as error:
        found.append({"name": "(unreadable)", "error": str(error)})
    return found


async def flow_list(subject: Subject, params: Params) -> dict[str, Any]:
    """Return the flows that the inspector was given."""
    return subject.flows.json()


async def flow_counts(subject: Subject, params: Params) -> dict[str, Any]:
    """Return the conversations in each state and the runs at each node; ``None`` while the first counts are made."""
    counted, at_nodes = await asyncio.gather(subject.counts(), subject.nodes.get())
    nodes, all_nodes = at_nodes or ([], True)
    return {
        "states": None if counted is None else [each._asdict() for each in counted.states],
        "runs": None if counted is None else [each._asdict() for each in counted.runs],
        "complete": counted is not None and counted.complete,
        "counted": COUNTED,
        "nodes": None if at_nodes is None else [each._asdict() for each in nodes],
        "all_nodes": all_nodes,
        "counted_at_nodes": COUNTED_AT_NODES,
    }


#: By the name of their route.
VIEWS: Final[dict[str, View]] = {"overview": overview, "flows": flow_list, "flow_counts": flow_counts}
