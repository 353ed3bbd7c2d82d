"""Moves a run to another node, and forks a new run from a stored one at a node."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from time import time
from typing import TYPE_CHECKING, Any

from stepwell._secrets import quoted
from stepwell.codec.large import open_data, seal_data
from stepwell.errors import EncodeError, FlowChanged, InvalidOption, RecordExists, RunExists, Unstorable, UsageError
from stepwell.nodes.deploy.position import around, branch_of
from stepwell.nodes.graph.base import BaseNode
from stepwell.nodes.graph.plan import program_of
from stepwell.nodes.history import BEFORE, HISTORY, history_of, rewound
from stepwell.nodes.queue.submitting import KEPT
from stepwell.nodes.run import lease
from stepwell.nodes.run.ids import check_flow_id, new_flow_id
from stepwell.nodes.run.notices import wake_workers
from stepwell.nodes.run.reading import read_known_run
from stepwell.nodes.run.table import GRAPH, PARAMS, flow_index, packed, run_head, run_table, set_table, unpacked
from stepwell.record import RUNS, Change, Place, Queue
from stepwell.slot import Slot
from stepwell.storage.operations import Apply, Guard

if TYPE_CHECKING:
    from stepwell.codec import Seal
    from stepwell.nodes.graph.base import BaseFlow
    from stepwell.nodes.graph.plan import Program, Stage
    from stepwell.nodes.run.reading import ReadRun
    from stepwell.nodes.run.table import Retention
    from stepwell.storage import Storage

__all__ = ["At", "fork", "move"]

#: A node of a flow: the node, its class if the flow has one of it, or its path.
At = BaseNode | type[BaseNode] | str

#: The entries of a table that belong to a position.
_POSITION = ("open", "lines", "rechecks", "caught", "undo", "undone", "stuck", "recoveries")
#: The part with the result of ``prep`` of the outermost flow.
_ROOT_PREP = "prep::0"


async def move(flow: BaseFlow, slot: Slot, at: At) -> dict[str, Any]:
    """Put a held run at the start of a node, and return the parts to write with the next commit."""
    program = program_of(flow, without_loop=False, durable=True)
    stage = stage_at(program, at)
    table = run_table(slot)
    parts = await slot.parts()
    if GRAPH not in parts:
        raise UsageError(f"run {quoted(slot.address.text)} has not begun; retry it without at=")
    _check_prepared(program, stage, parts)
    graph = parts[GRAPH]
    counts = dict(zip(graph, unpacked(table["visits"], len(graph)), strict=False))
    for name in _POSITION:
        table.pop(name, None)
    # It does not wait any more, if it did.
    table["before"] = "paused"
    table["graph"], table["visits"] = program.digest, _visits(program, stage, counts)
    slot.place = Place(slot.place.flow, stage.path, slot.place.revision)
    set_table(slot, table)
    return {GRAPH: program.shape}


async def fork(
    flow: BaseFlow,
    source: str,
    at: At,
    shared: Mapping[str, Any],
    *,
    storage: Storage,
    flow_id: str | None,
    keep: Retention,
) -> str:
    """Write a queued run that begins at a node with the state of another run, and return its id."""
    program = program_of(flow, without_loop=False, durable=True)
    stage = stage_at(program, at)
    run = await read_known_run(storage, source, parts=True)
    _check_source(flow, source, run)
    flow_id = new_flow_id(flow._title()) if flow_id is None else flow_id
    check_flow_id(flow_id)
    slot = Slot(storage, RUNS, flow_id)
    old, seal = storage.seal(run.address), storage.seal(slot.address)
    parts = {
        name: old.value("p", name, text)
        for name, text in (run.stored.parts or {}).items()
        if name == PARAMS or (name == _ROOT_PREP and program.root.keeps_prep)
    }
    _check_prepared(program, stage, parts)
    parts[GRAPH] = program.shape
    table: dict[str, Any] = {
        # A worker takes it like a run that was paused and retried.
        "status": "queued",
        "before": "paused",
        "graph": program.digest,
        "visits": _visits(program, stage, {}),
        "started": await lease.clock(storage, flow_id),
        "keep": keep or KEPT,
        "run": storage.ids()[-8:],
        "idle": round((storage.clock or time)(), 3),
        "forked": source,
    }
    index = flow_index(flow._title(), flow.revision)
    place = Place(flow._title(), stage.path, flow.revision if flow.revision > 1 else None)
    state = {**_state_at(run, stage, old, await open_data(old, run.stored.fields)), **shared}
    try:
        change = Change(
            write=storage.ids(),
            fresh=True,
            head=seal.head(run_head(place, table, storage.limits)),
            set=await seal_data(seal, state),
            parts={name: slot.seal_part(name, value).text for name, value in parts.items()},
            expiry=storage.expiry_of(slot.address),
            limit=seal.limit,
            queue=Queue(index),
        )
    except EncodeError as error:
        raise Unstorable("", error.path, error.type_name, error.why) from error
    try:
        await storage.perform(Apply(slot.address, change, Guard(absent=True)))
    except RecordExists:
        raise RunExists(flow_id) from None
    wake_workers(storage, index)
    return flow_id


def _state_at(run: ReadRun, stage: Stage, seal: Seal, state: dict[Any, Any]) -> dict[Any, Any]:
    """Return the shared state to begin at a node with: with values in the history, that before its last visit."""
    if not run.table.get("values") or run.place.state == stage.path:
        return state
    parts = {
        name: seal.value("p", name, text)
        for name, text in (run.stored.parts or {}).items()
        if name.startswith((HISTORY, BEFORE))
    }
    history = history_of(run.table, {name: value for name, value in parts.items() if name.startswith(HISTORY)})
    before = {int(name.removeprefix(BEFORE)): value for name, value in parts.items() if name.startswith(BEFORE)}
    try:
        found = rewound(state, history, stage.path, before)
    except LookupError as error:
        raise UsageError(f"the state before node {quoted(stage.path)} is not known: {error.args[0]}") from error
    return state if found is None else found


def stage_at(program: Program, at: At) -> Stage:
    """Return the stage of a node at which a run can begin; raise ``InvalidOption`` or ``UsageError``."""
    stages = program.stages[1:]
    if isinstance(at, str):
        found = [stage for stage in stages if stage.path == at]
    else:
        found = [stage for stage in stages if stage.node is at or stage.cls is at]
    if len(found) != 1:
        name = quoted(at) if isinstance(at, str) else getattr(at, "__name__", None) or f"this {type(at).__name__}"
        paths = [stage.path for stage in stages]
        if found:
            hint = f"give the path of one of them: {', '.join(quoted(stage.path) for stage in found)}"
            raise InvalidOption(f"at={name}: flow {quoted(program.root.path)} has several of these nodes; {hint}")
        near = get_close_matches(at, paths, n=1) if isinstance(at, str) else []
        hint = f"did you mean {quoted(near[0])}?" if near else f"its nodes are {', '.join(map(quoted, paths))}"
        raise InvalidOption(f"at={name}: flow {quoted(program.root.path)} has no such node; {hint}")
    (stage,) = found
    if branch := branch_of(stage.path):
        parallel = branch.rpartition("/")[0]
        raise UsageError(
            f"at={quoted(stage.path)}: a run cannot begin in a branch of a parallel node; give at={quoted(parallel)}"
        )
    return stage


def _check_prepared(program: Program, stage: Stage, parts: Mapping[str, Any]) -> None:
    """Raise ``UsageError`` if a node is inside a flow whose ``post`` needs the result of ``prep``."""
    inside = set(around(stage.path))
    for each in program.stages:
        if each.keeps_prep and each.key in inside and not (not each.key and _ROOT_PREP in parts):
            hint = f"give at={quoted(each.key)}" if each.key else "start a new run with submit()"
            raise UsageError(
                f"at={quoted(stage.path)}: it is inside flow {quoted(each.path)}, whose prep() must run first; {hint}"
            )


def _visits(program: Program, at: Stage, counts: Mapping[str, int]) -> list[list[int]]:
    """Return the visit counts of a run that is about to visit a node. It is inside the flows around that node."""
    inside = {"", *around(at.path)}
    return packed([max(counts.get(stage.key, 0), int(stage.key in inside)) for stage in program.stages])


def _check_source(flow: BaseFlow, source: str, run: ReadRun) -> None:
    if run.place.flow != flow._title():
        differs = f"it is a run of flow {quoted(run.place.flow)}, not of {quoted(flow._title())}"
        raise FlowChanged(source, [differs], asked="forked")
    status = run.table["status"]
    if "undo" in run.table or (status == "running" and not run.table.get("values")):
        doing = "undone" if "undo" in run.table else status
        raise UsageError(
            f"run {quoted(source)} is {doing}, so its state still changes; pause it, wait for its end, or use "
            'history="values"'
        )
    if status == "queued" and run.table.get("before", status) == "queued":
        raise UsageError(f"run {quoted(source)} has not begun; submit another run instead")
