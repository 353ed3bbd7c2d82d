"""The status of runs, read from their storage by any process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, get_args

from stepwell._secrets import quoted
from stepwell.codec import decode_key
from stepwell.errors import CorruptRecord, InvalidOption, RunReplaced, UnknownRun
from stepwell.nodes.history import HISTORY, VALUES, RunHistory, failure_of, history_of
from stepwell.nodes.run.reading import read_known_run, read_run
from stepwell.nodes.run.table import FINAL, GRAPH, Ending, Status, flow_index, table_of, tags_in
from stepwell.record import RUNS, Address, OpenedHead, Range, Stored
from stepwell.storage import ANY, Entry, Storage
from stepwell.storage.operations import Get

__all__ = [
    "CompletedNode",
    "OpenWait",
    "Progress",
    "Run",
    "RunError",
    "Status",
    "UndoneNode",
    "history",
    "progress_of",
    "run_of",
    "runs",
    "status",
    "waits_of",
]


class RunError(NamedTuple):
    """An error of a run."""

    #: The time in seconds since 1970, on the storage's clock.
    at: float
    #: The path of the node.
    node: str
    #: The name of the error's class.
    type: str
    #: At most 500 characters.
    message: str
    #: The text of the traceback, without local variables; at most 4,000 characters.
    traceback: str = ""
    #: The number of the attempt that failed, from 1.
    attempt: int = 1


class Progress(NamedTuple):
    """The progress of a batch at its last commit."""

    done: int
    total: int


class CompletedNode(NamedTuple):
    """A node of a run that has completed."""

    #: The path of the node.
    node: str
    #: When it began or was last continued, on the storage's clock.
    started_at: float
    #: The seconds from then until it completed.
    duration: float
    attempts: int = 1


class UndoneNode(NamedTuple):
    """A visit of a node that was undone."""

    #: The path of the node.
    node: str
    visit: int
    #: When, in seconds since 1970 on the storage's clock.
    at: float


class OpenWait(NamedTuple):
    """A wait without an answer, or with an answer that its node failed on."""

    #: The id for ``flow.resume(id, value)``; empty for a sleep and for a wait for child runs.
    id: str
    node: str
    question: Any
    deadline: float | None
    #: The ids of the child runs that it waits for.
    children: tuple[str, ...] = ()
    #: The JSON schema that an answer must fit; ``None`` if any value does.
    accepts: Mapping[str, Any] | None = None
    #: Since when it waits, on the storage's clock.
    since: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run at its last commit.

    Example::

        handle = await flow.submit({}, flow_id="order-42")
        run: Run = await handle.status()
        assert (run.status, run.flow) == ("queued", "words")
    """

    flow_id: str
    #: The flow's name.
    flow: str
    #: A run whose runner died is ``running`` too, until a worker or ``resume`` continues it.
    status: Status
    #: Why it is stuck or was cancelled; otherwise ``None``.
    reason: str | None
    #: The revision of the flow that it was last written with.
    revision: int
    #: The path of the node to run next; ``None`` when it has finished.
    node: str | None
    #: The next node of each parallel branch that is running.
    branches: Mapping[str, str]
    #: The last nodes that completed, the newest last.
    path: tuple[str, ...]
    #: The same nodes with their times.
    completed: tuple[CompletedNode, ...]
    #: The last errors, newest first.
    errors: tuple[RunError, ...]
    #: The progress of each batch that is running.
    progress: Mapping[str, Progress]
    #: The waits that need an answer or a deadline.
    waits: tuple[OpenWait, ...]
    #: Times are seconds since 1970 on the storage's clock; 0 for a queued run.
    started_at: float
    #: When it was last written.
    updated_at: float
    #: When a kept run is removed.
    expires_at: float | None
    #: Whether the call that ran it was cancelled. Its status is ``running``, and the next worker continues it.
    interrupted: bool = False
    #: How often its runner has died since its last completed node.
    recoveries: int = 0
    #: The tags that it was submitted with; their values are texts.
    tags: Mapping[str, str] = field(default_factory=dict)
    #: How it ends when its nodes are undone, while they are undone.
    undoing: Ending | None = None
    #: The id of the run that it was forked from.
    forked_from: str | None = None
    #: The last 100 visits of nodes that were undone, the newest last.
    undone: tuple[UndoneNode, ...] = ()
    #: The priority and the partition that it was submitted with.
    priority: int = 0
    partition: str | int | None = None
    #: Since when it is queued or paused; ``None`` for another status.
    idle_since: float | None = None


async def status(storage: Storage, flow_id: str) -> Run:
    """Return one run; raise ``UnknownRun`` if there is none, ``RunReplaced`` if its state was replaced."""
    address = storage.address(RUNS, flow_id)
    seal = storage.seal(address)
    stored: Stored | None = await storage.perform(Get(address))
    try:
        if stored is not None and not _is_unreplaced(seal.open_head(stored.head), address, stored.base):
            # A copied run has another base too, but it has its parts.
            stored = await storage.perform(Get(address, parts=True))
        if stored is None:
            raise UnknownRun(flow_id)
        run = _run(flow_id, seal.open_head(stored.head), address, stored)
    except CorruptRecord as error:
        assert stored is not None
        await storage.quarantine(address, stored, error)
        raise
    if run is None:
        raise UnknownRun(flow_id, state_only=True)
    if run.node is not None and run.status not in FINAL and stored.parts is not None and GRAPH not in stored.parts:
        raise RunReplaced(address.text, flow_id)
    return run


async def history(storage: Storage, flow_id: str) -> RunHistory:
    """Return the history of a run; raise ``UnknownRun`` if there is none."""
    run = await read_known_run(storage, flow_id, parts=Range.prefix(HISTORY))
    seal = storage.seal(run.address)
    parts = {name: seal.value("p", name, text) for name, text in (run.stored.parts or {}).items()}
    seen: dict[int, str] = {}
    if run.table.get("values"):
        stored: Stored | None = await storage.perform(Get(run.address, parts=Range.prefix(VALUES)))
        for name, text in ((stored and stored.parts) or {}).items():
            seen[int(name.removeprefix(VALUES))] = seal.value("p", name, text)
    found, failed = history_of(run.table, parts, seen), failure_of(run.table)
    return found if failed is None else RunHistory((*found.entries, failed), found.dropped)


async def mark_of(storage: Storage, flow_id: str) -> str | None:
    """Return the mark of a run, ``""`` if it has not begun, ``None`` if there is no run."""
    run = await read_run(storage, flow_id)
    return None if run is None else str(run.table.get("run", ""))


async def runs(
    storage: Storage, flow: str, status: Status | None, *, revision: int = 1, tags: Sequence[str] = ()
) -> AsyncIterator[Run]:
    """Yield the runs of a flow that have not ended, or those of one status, of all revisions up to this one.

    ``tags``: only runs with all of these.
    """
    if status is not None and status not in get_args(Status):
        raise InvalidOption(f"status={quoted(status)}: choose one of {', '.join(map(quoted, get_args(Status)))}")
    seen: set[Address] = set()
    for number in range(1, revision + 1):
        state, tag = ANY if status is None else status, tags[0] if tags else None
        async for entry in storage.scan(RUNS, flow=flow_index(flow, number), state=state, tag=tag):
            if not set(tags).issubset(entry.tags):
                continue
            run = None if entry.address in seen else _run(entry.key, entry.head, entry.address, entry)
            if run is not None and (run.status == status if status is not None else run.status not in FINAL):
                if number < revision:
                    # Meanwhile it may get a later revision.
                    seen.add(entry.address)
                yield run


def run_of(entry: Entry) -> Run | None:
    """Return the run in a listed record, or ``None`` if it has none; raise ``CorruptRecord`` if it is damaged."""
    return _run(entry.key, entry.head, entry.address, entry)


def _is_unreplaced(head: OpenedHead, address: Address, base: str) -> bool:
    """Return whether only runners have written the record, as far as its base shows."""
    table = table_of(head, address)
    # A run without a position is queued or has finished.
    ended = head.place.state is None or (table is not None and table["status"] in FINAL)
    return table is None or ended or table.get("base", "") == base


def _run(flow_id: str, head: OpenedHead, address: Address, stored: Stored | Entry) -> Run | None:
    place, table = head.place, table_of(head, address)
    if table is None or place.flow is None:
        return None
    started = table["started"]
    completed = [
        CompletedNode(path, started + start / 1000, duration / 1000, attempts)
        for path, start, duration, attempts in table.get("trail", ())
    ]
    opened: dict[str, Any] = table.get("open", {})
    return Run(
        flow_id=flow_id,
        flow=place.flow,
        status=table["status"],
        # A run that is retried keeps the reason until it continues.
        reason=(table.get(table["status"]) or None) if table["status"] in ("stuck", "cancelled") else None,
        revision=place.revision or 1,
        node=place.state,
        branches=table.get("lines", {}),
        path=tuple([each.node for each in completed]),
        completed=tuple(completed),
        errors=tuple(RunError(*error) for error in table.get("errors", ())),
        progress=progress_of(opened),
        waits=waits_of(opened),
        started_at=started,
        updated_at=stored.written_at,
        expires_at=stored.expires_at,
        interrupted=table.get("interrupted", False),
        recoveries=table.get("recoveries", 0),
        tags=tags_in(stored.tags),
        undoing=table["undo"]["ends"] if "undo" in table else None,
        forked_from=table.get("forked"),
        undone=tuple(UndoneNode(*each) for each in table.get("undone", ())),
        priority=table.get("priority", 0),
        partition=decode_key(table["partition"]) if "partition" in table else None,
        idle_since=table.get("idle") if table["status"] in ("queued", "paused") else None,
    )


def progress_of(opened: Mapping[str, Any]) -> dict[str, Progress]:
    """Return the progress of each batch in ``Journal.open``."""
    known = {node: inside.get("progress") if isinstance(inside, dict) else inside for node, inside in opened.items()}
    return {node: Progress(*inside) for node, inside in known.items() if isinstance(inside, list | tuple)}


def _children_of(wait: Mapping[str, Any]) -> tuple[str, ...]:
    if "child" in wait:
        return (wait["child"],)
    return tuple(f"{wait['step']}/{number}" for number in wait.get("running", ()))


def waits_of(opened: Mapping[str, Any]) -> tuple[OpenWait, ...]:
    """Return the waits in ``Journal.open`` that need an answer or a deadline."""
    return tuple(
        OpenWait(
            id=inside.get("again") or inside["id"],
            node=node,
            question=inside["question"],
            deadline=inside["until"],
            children=_children_of(inside),
            accepts=inside.get("accepts"),
            since=inside.get("since"),
        )
        for node, inside in opened.items()
        if isinstance(inside, dict) and ("answer" not in inside or "again" in inside)
    )
