"""The overview, and the flows with their counts."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from stepwell import Storage
from stepwell.errors import StepwellError
from stepwell.inspector.problems import Problem, of_counts
from stepwell.inspector.requests import Params, View
from stepwell.inspector.subject import COUNTED, COUNTED_AT_NODES, Subject
from stepwell.nodes import Schedules
from stepwell.operate.records import bots, timers

__all__ = ["VIEWS"]

#: How many bots, overdue timers, processes and schedules are shown.
SHOWN = 50
#: How many of the next timers are shown.
NEXT = 6


async def overview(subject: Subject, params: Params) -> dict[str, Any]:
    """Return what needs a look, the counts per state and status, the last hour, the next timers and the schedules."""
    # At the same time, because counts may take as long as a page may wait.
    counted, seen, upcoming, schedules = await asyncio.gather(
        subject.counts(), subject.seen.get(), _timers(subject.storage), _schedules(subject.storage)
    )
    problems = [] if seen is None else list(seen.problems)
    if counted is not None:
        problems += of_counts(counted, subject.flows)
    return {
        # None while the first counts are made.
        "states": None if counted is None else [each._asdict() for each in counted.states],
        "runs": None if counted is None else [each._asdict() for each in counted.runs],
        "turns": None if counted is None else [each._asdict() for each in counted.turns],
        "complete": counted is not None and counted.complete,
        "counted": COUNTED,
        "problems": [each._asdict() for each in sorted(problems, key=_urgency)],
        # Whether everything was looked at.
        "looked": seen is not None and counted is not None,
        "processes": [] if seen is None else [each._asdict() for each in seen.processes[:SHOWN]],
        "stopped": [] if seen is None else [each._asdict() for each in seen.hour.stopped[:SHOWN]],
        "minutes": {} if seen is None else seen.hour.minutes,
        "timers": upcoming,
        "schedules": schedules,
    }


def _urgency(problem: Problem) -> tuple[bool, float]:
    return not problem.is_bad, problem.since or 1e12


async def _timers(storage: Storage) -> list[dict[str, Any]]:
    found = []
    for bot in (await bots(storage))[:SHOWN]:
        found += await timers(storage, bot, before=1e12, limit=NEXT)
    return [each._asdict() for each in sorted(found, key=lambda each: each.deadline)[:NEXT]]


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
