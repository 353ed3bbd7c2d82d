"""The status of runs, read from their storage by any process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from stepwell.errors import CorruptRecord, InvalidOption, RunReplaced, UnknownRun
from stepwell.nodes.engine.run_format import GRAPH, table_of
from stepwell.record import RUNS, Address, Place, Stored
from stepwell.storage import Entry, Storage
from stepwell.storage.operations import Get

__all__ = ["OpenWait", "Progress", "Run", "RunError", "Status", "runs", "status"]

Status = Literal["running", "parked", "sleeping", "failed", "finished"]


class RunError(NamedTuple):
    """An error of a run."""

    #: When, in seconds since 1970 on the storage's clock.
    at: float
    #: The path of the node.
    node: str
    #: The name of the error's class.
    type: str
    message: str


class Progress(NamedTuple):
    """How far a batch is, as of its last commit."""

    done: int
    total: int


class OpenWait(NamedTuple):
    """A question that nobody has answered yet, or that its node has failed on the answer to."""

    #: Answers it: ``flow.resume(id, value)``. Empty for a sleep.
    id: str
    node: str
    question: Any
    deadline: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run, as its last commit left it."""

    flow_id: str
    #: The flow's name.
    flow: str
    #: ``running`` is also a run whose runner died: a worker, or ``resume``, takes it over.
    status: Status
    #: The path of the node to run next; ``None`` when it has finished.
    node: str | None
    #: Of each parallel branch that is under way: the node to run next.
    branches: Mapping[str, str]
    #: The last nodes that completed, the newest last.
    path: tuple[str, ...]
    #: The last errors, newest first.
    errors: tuple[RunError, ...]
    #: Of each batch that is under way.
    progress: Mapping[str, Progress]
    #: What it waits for.
    waits: tuple[OpenWait, ...]
    #: Times are seconds since 1970 on the storage's clock.
    started_at: float
    #: When it was last written.
    updated_at: float
    #: When a kept run is removed.
    expires_at: float | None


async def status(storage: Storage, flow_id: str) -> Run:
    """One run; ``UnknownRun`` if there is none, ``RunReplaced`` if its state was replaced from outside."""
    address = storage.address(RUNS, flow_id)
    seal = storage.seal(address)
    stored: Stored | None = await storage.perform(Get(address))
    try:
        if stored is not None and not _is_its_own(seal.open_head(stored.head), address, stored.base):
            # A copied run has another base too: its parts tell.
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
    if run.status != "finished" and stored.parts is not None and GRAPH not in stored.parts:
        raise RunReplaced(address.text, flow_id)
    return run


async def runs(storage: Storage, flow: str, status: Status | None) -> AsyncIterator[Run]:
    """The runs of a flow: those that have not finished, or those of one status."""
    if status is not None and status not in get_args(Status):
        raise InvalidOption(f"status={status!r}: choose one of {', '.join(map(repr, get_args(Status)))}")
    async for entry in storage.scan(RUNS, flow=flow):
        run = _run(entry.key, entry.place, entry.address, entry)
        if run is not None and (run.status == status if status is not None else run.status != "finished"):
            yield run


def _is_its_own(place: Place, address: Address, base: str) -> bool:
    """Whether this is known to be as its runners have left it."""
    table = table_of(place, address)
    return table is None or table["status"] == "finished" or table.get("base", "") == base


def _run(flow_id: str, place: Place, address: Address, stored: Stored | Entry) -> Run | None:
    table = table_of(place, address)
    if table is None or place.flow is None:
        return None
    opened: dict[str, Any] = table.get("open", {})
    return Run(
        flow_id=flow_id,
        flow=place.flow,
        status=table["status"],
        node=place.state,
        branches=table.get("lines", {}),
        path=tuple(place.history),
        errors=tuple(RunError(*error) for error in table.get("errors", ())),
        progress={node: Progress(*inside) for node, inside in opened.items() if isinstance(inside, list)},
        waits=tuple(
            OpenWait(inside.get("again") or inside["id"], node, inside["question"], inside["until"])
            for node, inside in opened.items()
            if isinstance(inside, dict) and ("answer" not in inside or "again" in inside)
        ),
        started_at=table["started"],
        updated_at=stored.written_at,
        expires_at=stored.expires_at,
    )
