"""Runs of node flows as an operator sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any, Final, NamedTuple, get_args

from stepwell.codec.json import MalformedJSON, from_json
from stepwell.codec.values import encode
from stepwell.errors import InvalidOption, StepwellError, StoredDataError, UnknownRun
from stepwell.nodes.engine import monitor
from stepwell.nodes.engine.ids import flow_of_wait
from stepwell.nodes.engine.monitor import Run, Status
from stepwell.operate.masking import MASK, is_secret, masked
from stepwell.record import RUNS, Limits, Stored
from stepwell.storage import Storage
from stepwell.storage.operations import Get

__all__ = ["OPEN", "DamagedRun", "check_status", "listed_runs", "shared_of", "show_run", "shown_value"]

#: The statuses of runs that have not ended.
OPEN: Final = tuple(status for status in get_args(Status) if status not in ("finished", "cancelled"))


class DamagedRun(NamedTuple):
    """A run of a list that cannot be read."""

    flow_id: str
    reason: str


def check_status(status: str) -> str:
    """Return a status; raise ``InvalidOption`` if there is no such status."""
    if status not in get_args(Status):
        raise InvalidOption(f"{status!r} is not a status; choose one of {', '.join(get_args(Status))}")
    return status


async def listed_runs(
    storage: Storage, statuses: Iterable[str] = OPEN, *, flow: str | None = None
) -> AsyncIterator[Run | DamagedRun]:
    """Yield the runs with one of these statuses, found by an index."""
    seen: set[str] = set()
    # Runs that an earlier release wrote have no status in the index.
    for status in (*statuses, None):
        async for entry in storage.scan(RUNS, state=status):
            key = entry.key
            if key in seen:
                continue
            seen.add(key)
            try:
                run = monitor.run_of(entry)
            except StoredDataError as error:
                yield DamagedRun(key, str(error))
                continue
            if run is not None and run.status in statuses and flow in (None, run.flow):
                yield run


async def show_run(storage: Storage, given: str) -> Run:
    """Return a run by its id or by the id of one of its waits; raise ``UnknownRun`` if there is none."""
    return await monitor.status(storage, flow_of_wait(given) or given)


async def shared_of(storage: Storage, flow_id: str) -> dict[str, Any]:
    """Return the shared state of a run as JSON of the codec, with secrets masked and unreadable fields left out."""
    address = storage.address(RUNS, flow_id)
    stored: Stored | None = await storage.perform(Get(address))
    if stored is None:
        raise UnknownRun(flow_id)
    seal = storage.seal(address)
    shared: dict[str, Any] = {}
    for name, text in stored.fields.items():
        try:
            value = from_json(seal.body("f", name, text))
        except (StepwellError, MalformedJSON):
            continue
        shared[name] = MASK if is_secret(name) and value is not None else masked(value)
    return shared


def shown_value(value: Any) -> Any:
    """Return a decoded value, such as a question, as JSON of the codec with its secrets masked."""
    return masked(from_json(encode(value, Limits())))
