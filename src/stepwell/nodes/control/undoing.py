"""Undoes the completed nodes of a durable run that has failed or was cancelled.

First the run commits how it will end. Then each node is undone and committed, the last one first, so that a worker can
go on after a crash. The last commit ends the run. If an ``undo`` fails for good, the run is stuck, and whoever resumes
or retries it tries that ``undo`` again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

from stepwell._secrets import quoted
from stepwell.errors import Conflict, EncodeError, RunStuck, StorageError, Unstorable
from stepwell.nodes.deploy.position import new_path
from stepwell.nodes.effects import is_effect, opened_effects
from stepwell.nodes.queue import children
from stepwell.nodes.run import lease
from stepwell.nodes.run.branch import Branch
from stepwell.nodes.run.errors import LAST as LAST_ERRORS
from stepwell.nodes.run.errors import summary_of
from stepwell.nodes.run.notices import wake_workers
from stepwell.nodes.run.parts import is_inside
from stepwell.nodes.run.table import PARAMS, UNDO, Ending, end_timers, flow_index, run_table, set_table
from stepwell.nodes.walk.execution import Cursor
from stepwell.nodes.walk.runner import copy_node
from stepwell.nodes.walk.undo import undo_node

if TYPE_CHECKING:
    from stepwell.nodes.graph.plan import Program, Stage
    from stepwell.nodes.run.journal import Journal
    from stepwell.nodes.walk.execution import Execution
    from stepwell.slot import Slot

__all__ = ["begin", "go_on", "hand_over"]

logger: logging.Logger = logging.getLogger(__name__)

#: How many of the last visits that were undone are stored.
LAST: Final = 100
#: The entries of a table that are about the way forward.
_FORWARD: Final = ("before", "stuck", "interrupted", "open", "lines", "rechecks")


async def begin(journal: Journal, ends: Ending, reason: str | None = None) -> None:
    """Commit that the completed nodes of a run are undone, and how it ends then."""
    slot = journal.slot
    await slot.rollback()
    table = _turned(slot, ends, reason)
    table["undos"] = journal.undos
    table.pop("recoveries", None)
    if journal.recoveries:
        table["recoveries"] = journal.recoveries
    if rows := journal.errors.newest_first():
        table["errors"] = rows
        if ends == "failed":
            # An undo() may fail, too.
            table["undo"].setdefault("cause", rows[0])
    set_table(slot, table)
    queue: Any = {"queue": None} if slot.queue is not None else {}
    # The last node may have completed without a commit.
    await slot.commit(keep=True, timers=journal.watch_timer(), parts=journal.unsure_undos, **queue)


async def hand_over(slot: Slot, reason: str | None) -> None:
    """Commit that a run was cancelled and that a worker is to undo its nodes, and release it."""
    table = _turned(slot, "cancelled", reason)
    table["interrupted"] = True
    set_table(slot, table)
    place = slot.place
    await slot.commit(timers={}, deadline=0.0, queue=None)
    wake_workers(slot.storage, flow_index(place.flow or "", place.revision or 1))


def _turned(slot: Slot, ends: Ending, reason: str | None) -> dict[str, Any]:
    table = run_table(slot)
    for name in _FORWARD:
        table.pop(name, None)
    table["status"], table["undo"] = "running", {**table.get("undo", {}), "ends": ends, "reason": reason}
    return table


async def go_on(journal: Journal, run: Execution, *, decided: bool = False) -> Ending:
    """Undo the nodes that are left, commit the end of the run, release it, and return how it has ended.

    ``decided``: somebody lets a run go on that was stuck, so effects run again whose outcome is unknown.
    Raises ``RunStuck`` if an ``undo`` fails for good.
    """
    slot = journal.slot
    journal.parts.take_pending()
    await journal.parts.load()
    if decided:
        loaded = list(journal.parts.loaded.values())
        journal.parts.forget([name for each in loaded for name, one in opened_effects(each).items() if one.unknown])
    _, parts = await slot.parts_of_others("")
    shared = dict(slot.data)
    for name in sorted((name for name in parts if name.startswith(UNDO)), reverse=True):
        path, visit, result = parts[name]
        cursor = Cursor(run, path, visit=visit, branch=Branch(journal, "", shared))
        try:
            node = await _undo(journal, cursor, shared, result, parts.get(PARAMS, {}))
            slot.data = dict(shared)
            stale = [part for part in journal.parts.loaded.pop(node, {}) if is_effect(part)]
            await _commit_undone(journal, [name, *stale], path, visit)
        except (Conflict, StorageError):
            # Another runner has the record, or the storage is unavailable.
            raise
        except Exception as error:
            if run.cancelling(error):
                raise asyncio.CancelledError from error
            await _stick(journal, cursor, path, error)
    table = run_table(slot)
    undo = table.pop("undo")
    table.pop("undos", None)
    ends: Ending = undo["ends"]
    if ends == "cancelled":
        set_table(slot, table)
        await lease.cancel(slot, undo["reason"])
    else:
        table["status"] = "failed"
        if "cause" in undo:
            # The error that failed the run is the first one.
            table["errors"] = [undo["cause"], *(row for row in table["errors"] if row != undo["cause"])][:LAST_ERRORS]
        set_table(slot, table)
        await slot.commit(timers=end_timers(table, slot.time()))
    return ends


async def _undo(journal: Journal, cursor: Cursor, shared: Any, result: Any, params: Mapping[str, Any]) -> str:
    """Call the ``undo`` of the visit at the cursor, and return the present path of its node."""
    program, path = journal.program, cursor.node
    stages = {stage.path: stage for stage in program.stages}
    renamed = program.root.node.renamed  # type: ignore[attr-defined]  # the root of a durable run is a flow
    stage = stages.get(path) or stages.get(new_path(path, renamed))
    if stage is None or stage.undo is None:
        problem = "is not a node of the flow any more" if stage is None else "has no undo() any more"
        raise LookupError(f"node {quoted(path)} has completed and must be undone, and {problem}")
    node = copy_node(stage, _params_of(program, stage, params))
    cursor.node = stage.path
    await undo_node(stage, cursor, node, shared, result)
    return stage.path


def _params_of(program: Program, stage: Stage, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the params that a node got from its run and from the flows around it."""
    around = [
        each for each in program.stages if each is not stage and (not each.key or is_inside(stage.path, each.key))
    ]
    merged = dict(params)
    for each in sorted(around, key=lambda each: len(each.key)):
        merged = {**each.node.params, **merged}
    return merged


async def _commit_undone(journal: Journal, dropped: list[str], path: str, visit: int) -> None:
    slot = journal.slot
    table = run_table(slot)
    table["undone"] = [*table.get("undone", ()), [path, visit, round(slot.time(), 3)]][-LAST:]
    table["undos"] = max(table.get("undos", 1) - 1, 0)
    if table.pop("recoveries", 0):
        journal.recover()
    set_table(slot, table)
    try:
        await slot.commit(keep=True, timers=journal.watch_timer(), dropped_parts=dropped)
    except EncodeError as error:
        raise Unstorable(path, error.path, error.type_name, error.why) from error
    logger.info("node %s of run %s was undone", quoted(path), quoted(journal.flow_id))


async def _stick(journal: Journal, cursor: Cursor, path: str, error: Exception) -> NoReturn:
    """Commit that a run is stuck because a node cannot be undone, release it, and raise ``RunStuck``."""
    reason = f"undo() of node {quoted(path)} failed with {summary_of(error)}"
    journal.errors.note(path, error, cursor.attempt, leaf=True)
    await journal.stick(reason)
    if journal.submitted:
        await children.release(journal.slot.storage, journal.flow, journal.flow_id, journal.submitted)
    logger.warning("run %s of flow %s is stuck: %s", quoted(journal.flow_id), quoted(journal.flow), reason)
    stuck = RunStuck(journal.flow_id, reason)
    cursor.run.end("run.stuck", error=stuck)
    raise stuck from error
