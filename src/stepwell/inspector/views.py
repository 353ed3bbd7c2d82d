"""The pages of the inspector as JSON. Nothing here writes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from stepwell import Storage
from stepwell.engine import ANY, quoted
from stepwell.errors import InvalidOption, StepwellError
from stepwell.inspector.subject import COUNTED, COUNTED_AT_NODES, Subject
from stepwell.nodes import Run, Schedules
from stepwell.operate.fields import searched_field
from stepwell.operate.processes import processes
from stepwell.operate.record import Missing, RecordView, read, resolve, show_at, view
from stepwell.operate.records import RecordFilter, bots, check_bot, listed, timers
from stepwell.operate.run_list import OPEN, DamagedRun, RunFilter, check_status, listed_runs
from stepwell.operate.runs import reason_of, record_of_run, shared_of, show_run, shown_value
from stepwell.operate.search import check_searchable
from stepwell.web.display import as_json

__all__ = ["VIEWS", "record_json", "run_json"]

#: How many bots, overdue timers, processes and schedules are shown.
SHOWN = 50
#: How many of the next timers are shown.
NEXT = 6
#: The rows of a page of a list, how many records or runs are read for it, and for about how many seconds.
PAGE, LOOKED, SECONDS = 50, 20_000, 0.2
#: Seconds after its time from which a timer is overdue: a bot that runs fires it within a second.
LATE = 60.0

Params = Mapping[str, str]
View = Callable[[Subject, Params], Awaitable[dict[str, Any]]]


class _Enough(Exception):
    """So many records were read that the search ends."""


def _now(storage: Storage) -> float:
    return (storage.clock or time.time)()


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
    now = _now(storage)
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


async def records(subject: Subject, params: Params) -> dict[str, Any]:
    """Return a page of the records of one bot that match a filter, and how many records were read for it."""
    storage = subject.storage
    names = await bots(storage)
    bot = params.get("bot") or (names[0] if names else "")
    page: dict[str, Any] = {"bots": names, "bot": bot, "rows": [], "after": None, "looked": 0, "complete": True}
    if not names:
        return page
    await check_bot(storage, bot)
    if key := params.get("key"):
        try:
            address = await resolve(storage, bot, key)
        except Missing:
            return page
        return page | {"rows": [_row(view(storage, address, await read(storage, address)))], "looked": 1}
    tags = [f"{name}:{_number(params, name)}" for name in ("user", "chat") if params.get(name)]
    wanted = RecordFilter(
        # A name that is given but empty: records without a flow or state.
        flow=params["flow"] or None if "flow" in params else ANY,
        state=params["state"] or None if "state" in params else ANY,
        tags=(*tags, *([params["tag"]] if params.get("tag") else [])),
        older_than=_number(params, "older") if params.get("older") else None,
        fields=_fields(params),
        masked=True,
        damaged=params.get("damaged") == "1",
    )
    found: list[RecordView] = []
    read_to: list[str] = []
    after, on_look = params.get("after"), _limited(page)
    try:
        async for each in listed(storage, bot, wanted, after=after, on_look=on_look, on_page=read_to.append):
            if len(found) == PAGE:
                page["after"] = found[-1].key
                break
            found.append(each.record)
            page["looked"] = each.looked
    except _Enough:
        page |= {"complete": False, "after": read_to[-1]}
    return page | {"rows": [_row(each) for each in found]}


def _limited(page: dict[str, Any]) -> Callable[[int], None]:
    end, is_late = time.monotonic() + SECONDS, False

    def on_look(looked: int) -> None:
        nonlocal is_late
        page["looked"] = looked
        if looked >= LOOKED or (looked and is_late):
            raise _Enough
        # One more read, because a short list ends with this one.
        is_late = time.monotonic() >= end

    return on_look


def _fields(params: Params) -> dict[str, Any] | None:
    """Return the field and value that are searched for; raise ``InvalidOption`` if they are masked."""
    if not params.get("field"):
        return None
    fields = dict([searched_field(params["field"])])
    check_searchable(fields)
    return fields


def _number(params: Params, name: str) -> int:
    text = params[name]
    if not text.removeprefix("-").isdecimal() or len(text) > 20:
        raise InvalidOption(f"{name} must be a whole number, got {quoted(text[:40])}")
    return int(text)


def _row(record: RecordView) -> dict[str, Any]:
    return {
        "bot": record.bot,
        "key": record.key,
        "flow": record.flow,
        "state": record.state,
        "written_at": record.written_at,
        "deadline": record.deadline,
        "tags": list(record.tags),
        "damage": list(record.damage),
    }


async def record(subject: Subject, params: Params) -> dict[str, Any]:
    """Return one record."""
    storage = subject.storage
    address = await resolve(storage, params.get("bot", ""), params.get("key", ""))
    return record_json(await show_at(storage, address))


def record_json(record: RecordView) -> dict[str, Any]:
    """Return a record as the page shows it: with its data truncated and its secrets masked."""
    return {**asdict(record), "data": as_json(record.data), "profile": as_json(record.profile)}


async def runs(subject: Subject, params: Params) -> dict[str, Any]:
    """Return a page of the runs with some statuses, and how many runs were read for it."""
    storage = subject.storage
    page: dict[str, Any] = {"rows": [], "after": None, "looked": 0, "complete": True}
    if params.get("id"):
        run = await show_run(storage, params["id"])
        return page | {"rows": [_run_row(run)], "looked": 1}
    wanted = RunFilter(
        statuses=(check_status(params["status"]),) if params.get("status") else OPEN,
        flow=params.get("flow") or None,
        node=params.get("node") or None,
        tags=(params["tag"],) if params.get("tag") else (),
        older_than=_number(params, "older") if params.get("older") else None,
        fields=_fields(params),
        masked=True,
    )
    found: list[Run | DamagedRun] = []
    read_to: list[str] = []
    after, on_look, cursor = params.get("after"), _limited(page), ""
    try:
        async for each in listed_runs(storage, wanted, after=after, on_look=on_look, on_page=read_to.append):
            if len(found) == PAGE:
                page["after"] = cursor
                break
            found.append(each.run)
            page["looked"], cursor = each.looked, each.cursor
    except _Enough:
        page |= {"complete": False, "after": read_to[-1]}
    return page | {"rows": [_run_row(each) for each in found]}


def _run_row(run: Run | DamagedRun) -> dict[str, Any]:
    if isinstance(run, DamagedRun):
        return {"flow_id": run.flow_id, "flow": None, "status": "unreadable", "why": run.reason}
    why = reason_of(run)
    return {
        "flow_id": run.flow_id,
        "flow": run.flow,
        "status": run.status,
        "node": run.node,
        "updated_at": run.updated_at,
        "why": why,
        "question": as_json(shown_value(run.waits[0].question)) if why is None and run.waits else None,
    }


async def run(subject: Subject, params: Params) -> dict[str, Any]:
    """Return one run."""
    storage = subject.storage
    return await run_json(storage, params.get("id", ""))


async def run_json(storage: Storage, given: str) -> dict[str, Any]:
    """Return a run as the page shows it. Its version is not newer than the rest, so that it guards an edit."""
    flow_id = (await show_run(storage, given)).flow_id
    record = await record_of_run(storage, flow_id)
    run = await show_run(storage, flow_id)
    timeouts = {wait.deadline for wait in run.waits}
    return {
        **_run_row(run),
        **record._asdict(),
        # An answer makes a parked run due at once.
        "answered": run.status == "parked"
        and record.due is not None
        and record.due <= _now(storage)
        and record.due not in timeouts,
        "reason": run.reason,
        "tags": [f"{name}={value}" for name, value in run.tags.items()],
        "revision": run.revision,
        "interrupted": run.interrupted,
        "branches": list(run.branches.items()),
        "path": list(run.path),
        "completed": [each._asdict() for each in run.completed],
        "errors": [each._asdict() for each in run.errors],
        "progress": [{"node": node, **each._asdict()} for node, each in run.progress.items()],
        "waits": [{**each._asdict(), "question": as_json(shown_value(each.question))} for each in run.waits],
        "started_at": run.started_at or None,
        "expires_at": run.expires_at,
        "shared": as_json(await shared_of(storage, flow_id)),
    }


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
VIEWS: Final[dict[str, View]] = {
    "overview": overview,
    "flows": flow_list,
    "flow_counts": flow_counts,
    "records": records,
    "record": record,
    "runs": runs,
    "run": run,
}
