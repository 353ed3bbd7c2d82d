"""Loads a stored run into its journal, and checks that it fits the graph of the flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from stepwell._secrets import quoted
from stepwell.errors import CorruptRecord, FlowChanged, LeaseLost, RecordReplaced, RunIsNewer, RunReplaced
from stepwell.nodes.deploy.graphs import is_older
from stepwell.nodes.deploy.migration import migrated
from stepwell.nodes.deploy.position import (
    Position,
    ambiguous_names,
    around,
    kind_of,
    misfits,
    new_path,
    renamed_position,
    stale_parts,
    starts_of,
)
from stepwell.nodes.graph.base import BaseFlow, BaseNode
from stepwell.nodes.graph.shape import Shape, digest
from stepwell.nodes.run.table import (
    FORMER,
    GRAPH,
    MAIL,
    PARAMS,
    Former,
    problem_of_part,
    run_table,
    unpacked,
)
from stepwell.nodes.run.waits import is_child_wait, unanswered

if TYPE_CHECKING:
    from stepwell.nodes.run.journal import Journal

__all__ = ["load", "load_queued", "load_undoing"]

_POSITION = "the position of its run"
#: The seconds by which the load times of two processes must differ, to be compared on the storage's clock.
_TOLERANCE: Final = 1.0


async def load(journal: Journal) -> dict[str, Any]:
    """Load the position of a run from its record, and return its params.

    Raises ``CorruptRecord`` if it is damaged, and ``FlowChanged`` if it does not fit the present graph of the flow.
    """
    slot = journal.slot
    table = run_table(slot)
    revision = _check_flow(journal)
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
            raise _corrupt(journal, f"the part {quoted(name)}", problem)
    journal.mailbox.accept({name: parts.pop(name) for name in [name for name in parts if name.startswith(MAIL)]})
    if digest(parts[GRAPH]) != table["graph"]:
        raise _corrupt(journal, "its graph", "differs from its digest")
    journal.restore(table)
    for name, value in parts.items():
        journal.parts.add(name, value)
    stored = _stored_position(journal, table, parts[GRAPH])
    _check_position(journal, stored, parts[GRAPH])
    await _fit(journal, stored, parts[GRAPH], table, revision)
    timed = {path: wait["until"] for path, wait in unanswered(journal.open).items() if wait["until"] is not None}
    latest = slot.now
    due = slot.deadline is not None and slot.deadline <= slot.now
    if (
        timed
        and table["status"] in ("parked", "sleeping")
        and due
        and not journal.mailbox.mail
        and not journal.rechecks
    ):
        # Without mail and rechecks, the record's deadline is the earliest of them, on the storage's clock.
        latest = max(latest, min(timed.values()))
    if "timeout" in table and min(timed.values(), default=latest) > table["timeout"][1]:
        # The deadline may be that of the whole run.
        latest = slot.now
    journal.overdue = {path for path, until in timed.items() if until <= latest}
    params: dict[str, Any] = journal.parts.loaded.get("", {}).get(PARAMS, {})
    return params


def _check_flow(journal: Journal) -> int:
    """Return the revision of a run; raise ``FlowChanged`` if it is a run of another flow or of a later revision."""
    found, revision = journal.slot.flow, journal.slot.place.revision or 1
    if found != journal.flow:
        raise FlowChanged(journal.flow_id, [f"it is a run of flow {quoted(found)}, not of {quoted(journal.flow)}"])
    if revision > journal.revision:
        problem = f"it has revision {revision} of its flow, and this process has revision {journal.revision}"
        raise RunIsNewer(journal.flow_id, [problem])
    return revision


async def load_queued(journal: Journal, table: dict[str, Any]) -> dict[str, Any]:
    """Prepare the journal of a queued run, and return its params. It has no position yet, and fits any graph."""
    slot, flow = journal.slot, cast(BaseFlow, journal.program.root.node)
    revision = _check_flow(journal)
    journal.restore_submitted(table)
    journal.note_idle(table)
    if revision < flow.revision and flow.migrate is not None:
        journal.status = "queued"
        stored = await migrated(journal, Position(journal.positions, {}, {}), revision, flow.migrate)
        journal.status, journal.positions = "running", stored.positions
        _set_visits(journal, stored, {"visits": {}, "renamed": sorted(flow.renamed)}, {})
        if problems := _unprepared(journal, stored):
            raise FlowChanged(journal.flow_id, problems, stuck=True)
    if "params" not in table and "mail" not in table:
        return {}
    parts = await slot.parts()
    journal.mailbox.accept({name: value for name, value in parts.items() if name.startswith(MAIL)})
    if "params" not in table:
        return {}
    problem = "is missing" if PARAMS not in parts else problem_of_part(PARAMS, parts[PARAMS])
    if problem is not None:
        raise _corrupt(journal, f"the part {quoted(PARAMS)}", problem)
    params: dict[str, Any] = parts[PARAMS]
    return params


async def load_undoing(journal: Journal, table: dict[str, Any]) -> None:
    """Prepare the journal of a run whose nodes are undone. Its position is not needed, and fits any graph."""
    _check_flow(journal)
    journal.restore(table)


def _stored_position(journal: Journal, table: dict[str, Any], graph: Shape) -> Position:
    try:
        counts = unpacked(table["visits"], len(graph))
    except ValueError as error:
        raise _corrupt(journal, _POSITION, "has another form (visits)") from error
    opened = dict(table.get("open", {}))
    return Position(
        positions={"": journal.slot.state or "", **table.get("lines", {})},
        open=opened,
        visits={path: count for path, count in zip(graph, counts, strict=False) if count},
        starts=starts_of(graph, opened),
        kinds={path: graph[path][0] for path in opened if path in graph},
    )


async def _fit(journal: Journal, stored: Position, graph: Shape, table: dict[str, Any], revision: int) -> None:
    """Fit the stored position to the present graph, and fill the journal with it."""
    flow = cast(BaseFlow, journal.program.root.node)
    before, changed = stored, table["graph"] != journal.digest
    former: Former = journal.parts.loaded.get("", {}).get(FORMER, {"visits": {}, "renamed": []})
    renamed = {old: new for old, new in flow.renamed.items() if changed and old not in former["renamed"]}
    problems: list[str] = []
    unsure: dict[str, str] = {}
    if changed:
        stages = {stage.path: stage for stage in journal.program.stages[1:]}
        unsure = ambiguous_names(before.used, renamed, graph, stages)
        stored, problems = renamed_position(before, renamed)
        await _rename_parts(journal, renamed)
        journal.parts.put("", "graph", "", journal.shape)
    if not problems and revision < flow.revision and flow.migrate is not None:
        stored = await migrated(journal, stored, revision, flow.migrate)
    if "" in stored.open and stored.positions[""] not in journal.shape:
        # Only post() of the flow is left to run, so its last node is not needed.
        stored.positions[""] = journal.positions[""]
    if not problems and (changed or stored is not before):
        problems = [problem for path, problem in unsure.items() if path in stored.used]
        problems += misfits(stored, journal.shape)
    if not problems:
        left = {
            path: count
            for path, count in before.visits.items()
            if new_path(path, renamed) != path or kind_of(journal.shape, path) != graph[path][0]
        }
        _set_visits(journal, stored, former, left)
        problems = _unprepared(journal, stored)
    if problems:
        if revision == flow.revision and await _is_old(journal, table):
            raise RunIsNewer(journal.flow_id, problems)
        raise FlowChanged(journal.flow_id, problems, stuck=True)
    journal.positions, journal.open = stored.positions, stored.open
    journal.parts.forget(stale_parts(stored, journal.parts.loaded))


async def _is_old(journal: Journal, table: dict[str, Any]) -> bool:
    """Return whether this process has an older graph than the process that wrote a run."""
    older = await is_older(journal.slot.storage, journal.flow, journal.digest, table["graph"])
    # Without workers, the later load tells the newer graph.
    return table.get("since", 0.0) > journal.since + _TOLERANCE if older is None else older


def _set_visits(journal: Journal, stored: Position, former: Former, left: dict[str, int]) -> None:
    """Count the visits of each node, so that no later visit has the number of an earlier one of the same path.

    ``left`` are the visits of nodes that were removed, renamed or replaced by this change of the graph.
    """
    shape, least = journal.shape, dict(former["visits"])
    for path, count in left.items():
        least[path] = max(count, least.get(path, 0))
    inside = {each for path in stored.positions.values() for each in around(path) if each}
    for index, path in enumerate(shape):
        count = max(stored.visits.get(path, 0), least.get(path, 0))
        journal.visits[index] = count or int(path in inside)
    # The visits of a wait tell which answers it has had.
    journal.former = {path: count for path, count in least.items() if path not in shape or shape[path][0] != "wait"}
    known: Former = {
        "visits": journal.former,
        "renamed": sorted(cast(BaseFlow, journal.program.root.node).renamed),
    }
    if known != former:
        journal.parts.put("", "former", "", known)


async def _rename_parts(journal: Journal, renamed: dict[str, str]) -> None:
    """Move the parts of renamed nodes to their new names."""
    moved = [(path, new_path(path, renamed)) for path in journal.parts.loaded if new_path(path, renamed) != path]
    taken = [(target, dict(journal.parts.loaded[path])) for path, target in moved]
    journal.parts.forget([name for _, parts in taken for name in parts])
    for target, parts in taken:
        for name, value in parts.items():
            await journal.parts.move(name.partition(":")[0], target, name.rpartition(":")[2], value)


def _unprepared(journal: Journal, stored: Position) -> list[str]:
    """Return which flows around the position got a ``prep`` whose result their ``post`` needs, as sentences."""
    inside = {*stored.open, *(each for path in stored.positions.values() for each in around(path))}
    return [
        f"it is inside {quoted(stage.key or journal.flow)}, whose post() needs the result of prep(), which has not run"
        for stage in journal.program.stages
        if stage.keeps_prep
        and stage.key in inside
        and journal.visits[stage.index]
        and stage.post not in (BaseNode.post, BaseFlow.post)
        and f"prep:{stage.key}:0" not in journal.parts.loaded.get(stage.key, {})
    ]


def _check_position(journal: Journal, stored: Position, graph: Shape) -> None:
    """Raise ``CorruptRecord`` unless the position fits the graph that it was stored with, and the parts."""
    forms = {"wait": dict, "sleep": dict, "batch": list, "children": dict}
    opened = stored.open
    waits = any(isinstance(inside, dict) for inside in opened.values()) or bool(journal.rechecks)
    if journal.status in ("parked", "sleeping") and not waits:
        raise _corrupt(journal, _POSITION, "has no wait")
    for path in stored.positions.values():
        if not path or path not in graph:
            raise _corrupt(journal, _POSITION, f"is not a node of its graph: {quoted(path)}")
    # The visit of a node that waits for a child counts when the node completes.
    begun = [path for path, inside in opened.items() if graph.get(path, [""])[0] != "node"]
    known = [*stored.positions.values(), *(f"{path}/" for path in begun)]
    for path in graph:
        if path and path not in stored.visits and any(each.startswith(f"{path}/") for each in known):
            raise _corrupt(journal, _POSITION, f"is inside the node {quoted(path)}, which was not visited")
    for path, inside in opened.items():
        kind = graph[path][0] if path in graph else ""
        form = dict if kind == "node" and is_child_wait(inside) else forms.get(kind)
        if type(inside) is not form and (form is not None or type(inside) in (dict, list)):
            raise _corrupt(journal, _POSITION, f"does not fit the node {quoted(path)}")
        if kind in ("batch", "children"):
            total = inside[1] if kind == "batch" else inside.get("progress", (0, -1))[1]
            items = sum(len(part) for part in journal.parts.all_of(path, "items"))
            done = [row[0] for part in journal.parts.all_of(path, "done") for row in part]
            if total != items or not all(0 <= index < items for index in done):
                raise _corrupt(journal, f"the batch {quoted(path)}", "does not have the items that it was begun with")


def _corrupt(journal: Journal, what: str, why: str) -> CorruptRecord:
    return CorruptRecord(journal.slot.address.text, what, why)
