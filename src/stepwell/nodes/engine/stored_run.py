"""Loads a stored run into its journal, and checks that it fits the graph of the flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepwell.errors import CorruptRecord, FlowChanged, LeaseLost, RecordReplaced, RunReplaced
from stepwell.nodes.engine.run_format import (
    GRAPH,
    MAIL,
    PARAMS,
    owner_of_part,
    problem_of_part,
    submitted_of,
    table_of,
    unpack,
)
from stepwell.nodes.engine.shape import difference, digest
from stepwell.nodes.engine.waits import unanswered

if TYPE_CHECKING:
    from stepwell.nodes.engine.journal import Journal

__all__ = ["load", "load_queued"]

_POSITION = "the position of its run"


async def load(journal: Journal) -> dict[str, Any]:
    """Load the position of a run from its record, and return its params; raise ``CorruptRecord`` if it is damaged."""
    slot = journal.slot
    table = table_of(slot.place, slot.address)
    assert table is not None
    _check_flow(journal)
    try:
        parts = await slot.parts()
    except (LeaseLost, RecordReplaced) as lost:
        journal.explain_loss(lost, "before this runner could resume it")
        raise
    if GRAPH not in parts:
        raise RunReplaced(slot.address.text, journal.flow_id)
    for name, value in parts.items():
        problem = problem_of_part(name, value)
        if problem is not None:
            raise _corrupt(journal, f"the part {name!r}", problem)
    journal.accept_mail({name: parts.pop(name) for name in [name for name in parts if name.startswith(MAIL)]})
    if digest(parts[GRAPH]) != table["graph"]:
        raise _corrupt(journal, "its graph", "differs from its digest")
    if table["graph"] != journal.digest:
        raise FlowChanged(journal.flow_id, difference(parts[GRAPH], journal.shape))
    journal.status, journal.started_at = table["status"], table["started"]
    journal.keep, journal.mark = table.get("keep", False), table.get("run", "")
    journal.submitted = submitted_of(table)
    journal.positions = {"": slot.state or "", **table.get("lines", {})}
    journal.open = dict(table.get("open", {}))
    journal.errors.extend(reversed(table.get("errors", ())))
    journal.trail.extend(slot.place.history)
    # The same nodes may have been declared in another order.
    indexes = {path: index for index, path in enumerate(journal.shape)}
    try:
        visits = unpack(table["visits"], len(indexes))
    except ValueError as error:
        raise _corrupt(journal, _POSITION, "has another form (visits)") from error
    for path, count in zip(parts[GRAPH], visits, strict=False):
        journal.visits[indexes[path]] = count
    for name, value in parts.items():
        journal.parts.setdefault(owner_of_part(name), {})[name] = value
    _check_position(journal)
    timed = {path: wait["until"] for path, wait in unanswered(journal.open).items() if wait["until"] is not None}
    latest = slot.now
    due = slot.deadline is not None and slot.deadline <= slot.now
    if timed and journal.status != "running" and due and not journal.mail:
        # Without mail, the record's deadline is the earliest of them, on the storage's clock.
        latest = max(latest, min(timed.values()))
    journal.overdue = {path for path, until in timed.items() if until <= latest}
    params: dict[str, Any] = journal.parts.get("", {}).get(PARAMS, {})
    return params


def _check_flow(journal: Journal) -> None:
    """Raise ``FlowChanged`` if this is a run of another flow."""
    found = journal.slot.flow
    if found != journal.flow:
        raise FlowChanged(journal.flow_id, [f"it is a run of flow {found!r}, not of {journal.flow!r}"])


async def load_queued(journal: Journal, table: dict[str, Any]) -> dict[str, Any]:
    """Prepare the journal of a queued run, and return its params. It has no position yet, and fits any graph."""
    slot = journal.slot
    _check_flow(journal)
    journal.keep, journal.submitted = table.get("keep", False), submitted_of(table)
    if "params" not in table:
        return {}
    parts = await slot.parts()
    problem = "is missing" if PARAMS not in parts else problem_of_part(PARAMS, parts[PARAMS])
    if problem is not None:
        raise _corrupt(journal, f"the part {PARAMS!r}", problem)
    params: dict[str, Any] = parts[PARAMS]
    return params


def _check_position(journal: Journal) -> None:
    """Raise ``CorruptRecord`` unless the position fits the graph and the parts that were loaded."""
    forms = {"wait": dict, "sleep": dict, "batch": list}
    shape, opened = journal.shape, journal.open
    if journal.status in ("parked", "sleeping") and not any(isinstance(inside, dict) for inside in opened.values()):
        raise _corrupt(journal, _POSITION, "has no wait")
    for path in journal.positions.values():
        if not path or path not in shape:
            raise _corrupt(journal, _POSITION, f"is not a node of its graph: {path!r}")
    known = [*journal.positions.values(), *(f"{path}/" for path in opened)]
    for path, visits in zip(shape, journal.visits, strict=True):
        if path and not visits and any(each.startswith(f"{path}/") for each in known):
            raise _corrupt(journal, _POSITION, f"is inside the node {path!r}, which was not visited")
    for path, inside in opened.items():
        kind = shape[path][0] if path in shape else ""
        form = forms.get(kind)
        if type(inside) is not form and (form is not None or type(inside) in (dict, list)):
            raise _corrupt(journal, _POSITION, f"does not fit the node {path!r}")
        if kind == "batch":
            items = sum(len(part) for part in journal.parts_of(path, "items"))
            done = [row[0] for part in journal.parts_of(path, "done") for row in part]
            if inside[1] != items or not all(0 <= index < items for index in done):
                raise _corrupt(journal, f"the batch {path!r}", "does not have the items that it was begun with")


def _corrupt(journal: Journal, what: str, why: str) -> CorruptRecord:
    return CorruptRecord(journal.slot.address.text, what, why)
