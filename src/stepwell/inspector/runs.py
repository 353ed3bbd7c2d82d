"""Runs of node flows: the list, one run, and its changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from stepwell import Storage
from stepwell.engine import quoted
from stepwell.errors import InvalidOption, UsageError
from stepwell.inspector import requests
from stepwell.inspector.flows import KnownFlows
from stepwell.inspector.records import places
from stepwell.inspector.requests import Action, Enough, Given, Params, View, fields, limited, number, text, value
from stepwell.inspector.subject import Subject
from stepwell.nodes import Answered, HistoryEntry, NodeFlow, Run
from stepwell.nodes.engine import FINAL, flow_of_wait
from stepwell.operate import runs as operated
from stepwell.operate.edits import Edit
from stepwell.operate.records import bots
from stepwell.operate.run_list import OPEN, DamagedRun, ListedRun, RunFilter, check_status, listed_runs
from stepwell.operate.runs import reason_of, record_of_run, shared_of, show_history, show_run, shown_value
from stepwell.web.display import as_json

__all__ = ["ACTIONS", "TAGS", "VIEWS", "run_json", "run_row"]

#: Of how many bots the conversations are looked for that are in the chat of a run.
MOST_BOTS = 10
#: Seconds that a request waits for a run to stop.
STOPPING = 20.0
#: Seconds that a list waits for counts.
SOON = 0.05
#: The statuses of runs that nothing continues by itself.
STOPPED = FINAL | {"failed", "stuck"}
#: The statuses of runs that have not ended, those that need an operator first.
URGENT = tuple(sorted(OPEN, key=("stuck", "failed", "parked", "paused", "running", "queued", "sleeping").index))


async def runs(subject: Subject, params: Params) -> dict[str, Any]:
    """Return a page of the runs with some statuses, how many runs were read for it, and the counts by status."""
    # At the same time, because counts may take as long as a page may wait.
    page, counts = await asyncio.gather(_list(subject.storage, params), _counts(subject, params.get("flow")))
    return {**page, "counts": counts}


async def _list(storage: Storage, params: Params) -> dict[str, Any]:
    """Without ``sort`` a page is found by an index. With it, runs are read and sorted, as many as a page may read."""
    page: dict[str, Any] = {"rows": [], "after": None, "looked": 0, "complete": True}
    if params.get("id"):
        run = await show_run(storage, params["id"])
        return page | {"rows": [run_row(run, (await record_of_run(storage, run.flow_id)).version)], "looked": 1}
    wanted = RunFilter(
        statuses=(check_status(params["status"]),) if params.get("status") else URGENT,
        flow=params.get("flow") or None,
        node=params.get("node") or None,
        partition=params.get("partition") or None,
        tags=(params["tag"],) if params.get("tag") else (),
        older_than=number(params, "older") if params.get("older") else None,
        fields=fields(params),
        masked=True,
    )
    found: list[ListedRun] = []
    read_to: list[str] = []
    sort = _sort(params, (storage.clock or time.time)())
    after, on_look = params.get("after"), limited(page, sorting=sort is not None)
    try:
        start = None if sort else after
        async for each in listed_runs(storage, wanted, after=start, on_look=on_look, on_page=read_to.append):
            if len(found) == requests.PAGE and sort is None:
                page["after"] = found[-1].cursor
                break
            found.append(each)
            page["looked"] = each.looked
    except Enough:
        page |= {"complete": False, "after": read_to[-1]}
    if sort is not None:
        skip = max(0, number(params, "after")) if after else 0
        page |= {"sorted": len(found), "all": page["complete"], "complete": True, "after": None}
        if len(found) > skip + requests.PAGE:
            page["after"] = str(skip + requests.PAGE)
        found = sort(found)[skip : skip + requests.PAGE]
    return page | {"rows": [run_row(each.run, each.version) for each in found]}


async def _counts(subject: Subject, flow: str | None) -> dict[str, list[int | bool]]:
    """Return how many runs have each status, and whether there are more; empty while the first counts are made."""
    found: dict[str, list[int | bool]] = {}
    counted = await subject.counts(wait=SOON)
    for row in counted.runs if counted is not None else ():
        if flow in (None, "", row.flow):
            number, more = found.get(row.status, (0, False))
            found[row.status] = [number + row.runs, more or row.more]
    return found


def _sort(params: Params, now: float) -> Callable[[list[ListedRun]], list[ListedRun]] | None:
    """Return a function that sorts runs by a column: ``sort=started``, or ``sort=-started`` for the largest first."""
    name = params.get("sort", "")
    column = name.removeprefix("-")
    if not name:
        return None
    if column not in SORTS:
        raise InvalidOption(f"runs cannot be sorted by {quoted(column)}; choose one of {', '.join(SORTS)}")

    def sort(runs: list[ListedRun]) -> list[ListedRun]:
        keys: list[tuple[Any, ListedRun]] = [
            (None if isinstance(each.run, DamagedRun) else SORTS[column](each.run, now), each) for each in runs
        ]
        known = [pair for pair in keys if pair[0] is not None]
        known.sort(key=lambda pair: pair[0], reverse=name.startswith("-"))
        return [each for _, each in known] + [each for key, each in keys if key is None]

    return sort


def _duration(run: Run, now: float) -> float | None:
    if not run.started_at:
        return None
    return (run.updated_at if run.status in STOPPED else now) - run.started_at


def _since(run: Run) -> float | None:
    """Return since when a run waits: in a queue, for an answer, or for an operator."""
    asked = [wait.since for wait in run.waits if wait.since is not None]
    if run.status in ("failed", "stuck", "parked", "sleeping"):
        return min(asked, default=run.updated_at)
    return run.idle_since


#: By the name of a column: what runs are sorted by.
SORTS: Final[dict[str, Callable[[Run, float], Any]]] = {
    "run": lambda run, now: run.flow_id,
    "flow": lambda run, now: run.flow,
    "node": lambda run, now: run.node,
    "started": lambda run, now: run.started_at or None,
    "duration": _duration,
    "waiting": lambda run, now: None if (since := _since(run)) is None else now - since,
    "written": lambda run, now: run.updated_at,
    "partition": lambda run, now: None if run.partition is None else str(run.partition),
    "priority": lambda run, now: run.priority,
}


def run_row(run: Run | DamagedRun, version: str = "") -> dict[str, Any]:
    """Return a run as a row of a list."""
    if isinstance(run, DamagedRun):
        return {"flow_id": run.flow_id, "flow": None, "status": "unreadable", "why": run.reason, "tags": []}
    why = reason_of(run)
    return {
        "flow_id": run.flow_id,
        "flow": run.flow,
        "status": run.status,
        "node": run.node,
        "updated_at": run.updated_at,
        "started_at": run.started_at or None,
        "ended": run.status in FINAL,
        "stopped": run.status in STOPPED,
        "since": _since(run),
        "tags": [f"{name}={value}" for name, value in run.tags.items()],
        "partition": None if run.partition is None else str(run.partition),
        "priority": run.priority,
        "why": why,
        "question": as_json(shown_value(run.waits[0].question)) if why is None and run.waits else None,
        "version": version,
    }


async def tag_of_run(subject: Subject, params: Params) -> str:
    """Return the version of a run. It costs one read, so a page that has this version is not read again."""
    given = params.get("id", "")
    return (await record_of_run(subject.storage, flow_of_wait(given) or given)).version


async def run(subject: Subject, params: Params) -> dict[str, Any]:
    """Return one run."""
    storage = subject.storage
    found = await run_json(storage, params.get("id", ""))
    tags = (await show_run(storage, found["flow_id"])).tags
    chats = [tags["chat"]] if "chat" in tags else []
    names = [str(tags["bot"])] if "bot" in tags else (await bots(storage))[:MOST_BOTS] if chats else []
    return {**found, "chats": list(map(str, chats)), "places": await places(storage, chats, names)}


async def run_json(storage: Storage, given: str) -> dict[str, Any]:
    """Return a run as the page shows it. Its version is not newer than the rest, so that it guards an edit."""
    flow_id = (await show_run(storage, given)).flow_id
    record = await record_of_run(storage, flow_id)
    run, history = await show_run(storage, flow_id), await show_history(storage, flow_id)
    timeouts = {wait.deadline for wait in run.waits}
    return {
        **record._asdict(),
        **run_row(run, record.version),
        # An answer makes a parked run due at once.
        "answered": run.status == "parked"
        and record.due is not None
        and record.due <= (storage.clock or time.time)()
        and record.due not in timeouts,
        "reason": run.reason,
        "revision": run.revision,
        "interrupted": run.interrupted,
        "branches": list(run.branches.items()),
        "history": [_entry_json(each) for each in history],
        "dropped": history.dropped,
        "forked_from": run.forked_from,
        "undoing": run.undoing,
        "undone": [each._asdict() for each in run.undone],
        "calls": await operated.called_again(storage, run),
        "errors": [each._asdict() for each in run.errors],
        "progress": [{"node": node, **each._asdict()} for node, each in run.progress.items()],
        "waits": [{**each._asdict(), "question": as_json(shown_value(each.question))} for each in run.waits],
        "expires_at": run.expires_at,
        "shared": as_json(await shared_of(storage, flow_id)),
    }


def _entry_json(entry: HistoryEntry) -> dict[str, Any]:
    return {**asdict(entry), "input": as_json(entry.input), "output": as_json(entry.output)}


async def retry(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """Put a failed, stuck or paused run into the queue again; a worker continues it."""
    run = await operated.check_unchanged(storage, text(given, "id"), text(given, "version"))
    if run.status not in ("failed", "stuck", "paused"):
        raise UsageError(
            f"run {quoted(run.flow_id)} is {run.status}; only failed, stuck and paused runs can be retried"
        )
    await operated.retry(storage, run, who=who)
    return {"run": await run_json(storage, run.flow_id)}


async def pause(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """Stop a run after the nodes that it runs now; no worker continues it."""
    run = await operated.check_unchanged(storage, text(given, "id"), text(given, "version"))
    try:
        async with asyncio.timeout(STOPPING):
            await operated.pause(storage, run.flow_id, who=who)
    except TimeoutError:
        raise UsageError(f"run {quoted(run.flow_id)} has not stopped yet; it stops when its node returns") from None
    return {"run": await run_json(storage, run.flow_id)}


async def cancel(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """End a run as cancelled."""
    run = await operated.check_unchanged(storage, text(given, "id"), text(given, "version"))
    reason = given.get("reason") or None
    if reason is not None and not isinstance(reason, str):
        raise UsageError("reason must be a text")
    try:
        async with asyncio.timeout(STOPPING):
            await operated.cancel(storage, run.flow_id, reason, who=who)
    except TimeoutError:
        raise UsageError(f"run {quoted(run.flow_id)} has not ended yet; it ends when its node returns") from None
    return {"run": await run_json(storage, run.flow_id)}


async def answer(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """Answer a wait of a run, which its id names whatever the run does meanwhile; a worker continues it."""
    flow_id, wait = text(given, "id"), text(given, "wait")
    if flow_of_wait(wait) != flow_id:
        raise UsageError(f"{quoted(wait)} is no wait of run {quoted(flow_id)}")
    outcome = Answered.ACCEPTED
    try:
        await operated.answer(storage, wait, value(given), who=who)
    except operated.AlreadyAnswered as refused:
        outcome = refused.answered
    return {"outcome": str(outcome), "run": await run_json(storage, flow_id)}


async def set_shared(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """Set a field of the shared state of a run."""
    return await _change(storage, who, given, Edit(fields={text(given, "field"): value(given)}))


async def remove_shared(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """Remove a field of the shared state of a run."""
    return await _change(storage, who, given, Edit(unset=(text(given, "field"),)))


async def _change(storage: Storage, who: str, given: Given, changes: Edit) -> dict[str, Any]:
    version = text(given, "version")
    run = await operated.check_unchanged(storage, text(given, "id"), version)
    await operated.change_shared(storage, run, changes, version=version, who=who)
    return {"run": await run_json(storage, run.flow_id)}


async def retry_at(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """Put a failed, stuck or paused run into the queue again at another node."""
    run = await operated.check_unchanged(storage, text(given, "id"), text(given, "version"))
    await operated.retry_at(storage, _flow_of(flows, run), run, text(given, "at"), who=who)
    return {"run": await run_json(storage, run.flow_id)}


async def fork(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """Put a new run into the queue that begins at a node with the state of another run."""
    run = await operated.check_unchanged(storage, text(given, "id"), text(given, "version"))
    forked = await operated.fork(storage, _flow_of(flows, run), run, text(given, "at"), who=who)
    return {"forked": forked}


async def complete(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """Say what a call of a stuck run has returned, whose outcome is unknown."""
    run = await operated.check_unchanged(storage, text(given, "id"), text(given, "version"))
    await operated.complete(storage, run, text(given, "node"), value(given), None, who=who)
    return {"run": await run_json(storage, run.flow_id)}


def _flow_of(flows: KnownFlows, run: Run) -> NodeFlow:
    flow = flows.runs.get(run.flow)
    if flow is None:
        raise UsageError(
            f"the inspector does not have the flow {quoted(run.flow)}; start it with the file of your flows"
        )
    return flow


#: By the name of their route.
VIEWS: Final[dict[str, View]] = {"runs": runs, "run": run}
TAGS: Final = {"run": tag_of_run}
ACTIONS: Final[dict[str, Action]] = {
    "retry": retry,
    "retry_at": retry_at,
    "fork": fork,
    "complete": complete,
    "pause": pause,
    "cancel": cancel,
    "answer": answer,
    "set_shared": set_shared,
    "remove_shared": remove_shared,
}
