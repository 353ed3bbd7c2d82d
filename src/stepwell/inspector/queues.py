"""The queues of runs: all of them, and the runs of one in the order in which they are taken."""

from __future__ import annotations

from typing import Any, Final

from stepwell.errors import Unsupported
from stepwell.inspector import requests
from stepwell.inspector.requests import Params, View, number
from stepwell.inspector.runs import run_row
from stepwell.inspector.subject import Subject
from stepwell.operate.processes import ProcessView, processes
from stepwell.operate.queues import QueueView, queued_runs
from stepwell.operate.queues import queues as listed_queues

__all__ = ["VIEWS"]

#: The most processes that are read to know who works off a queue.
PROCESSES_READ = 500


async def queues(subject: Subject, params: Params) -> dict[str, Any]:
    """Return a page of the queues, each with the run that is taken next, and with the workers of its flow."""
    storage = subject.storage
    workers = [each for each in await processes(storage, limit=PROCESSES_READ) if each.kind == "worker"]
    try:
        found, after = await listed_queues(
            storage, flow=params.get("flow", ""), after=params.get("after", ""), limit=requests.PAGE
        )
    except Unsupported:
        found, after = [], None
    return {"rows": [_row(each, workers) for each in found], "after": after, "looked": len(found)}


def _row(queue: QueueView, workers: list[ProcessView]) -> dict[str, Any]:
    serving = [each for each in workers if queue.flow in each.names]
    limits = {name: value for each in serving for name, value in each.limits.get(queue.flow, {}).items() if value}
    following = None if queue.next is None else run_row(queue.next)
    return {
        **queue._asdict(),
        "next": following,
        "since": following and following.get("since"),
        "workers": len(serving),
        "limits": limits,
        "concurrency": sum(each.concurrency or 0 for each in serving),
    }


async def queue(subject: Subject, params: Params) -> dict[str, Any]:
    """Return the runs that wait in one queue, the one that is taken next first."""
    name, skip = params.get("name", ""), number(params, "after") if params.get("after") else 0
    page = await queued_runs(subject.storage, name, skip=max(0, min(skip, 10_000)), limit=requests.PAGE)
    rows = [run_row(each) | {"place": skip + at} for at, each in enumerate(page.runs, 1)]
    return {"name": name, "rows": rows, "after": str(skip + len(rows)) if page.more else None, "looked": len(rows)}


#: By the name of their route.
VIEWS: Final[dict[str, View]] = {"queues": queues, "queue": queue}
