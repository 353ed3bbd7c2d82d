"""Undoes a node that has completed: calls its ``undo`` with the attempts and the timeout of its ``exec``."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stepwell._secrets import quoted
from stepwell.errors import UsageError
from stepwell.nodes.graph.hooks import Hook, is_async
from stepwell.nodes.run.branch import Park
from stepwell.nodes.run.errors import summary_of
from stepwell.nodes.walk.attempts import attempt
from stepwell.nodes.walk.execution import Cursor, Execution, enter, leave
from stepwell.nodes.walk.on_error import add_note, attach

if TYPE_CHECKING:
    from stepwell.nodes.graph.plan import Stage

__all__ = ["undo_in_memory", "undo_node"]

#: The effects of an ``undo`` are counted from here.
EFFECTS = 1_000_000


async def undo_node(stage: Stage, cursor: Cursor, node: Any, shared: Any, result: Any) -> None:
    """Undo one visit of a node; raise the error of its last attempt."""
    assert stage.undo is not None
    undoing = copy.copy(stage)
    undoing.exec = _with_one_argument(stage.undo)
    undoing.has_fallback = False
    # It runs again after a crash. What must not is an effect inside it.
    undoing.policy = replace(stage.policy, replay="safe")
    # Those of the node itself may still be stored, if its post() has failed.
    cursor.effects = [EFFECTS]
    undoing.threaded = not (is_async(undoing.exec) or stage.policy.inline or cursor.run.without_loop)
    token = enter(cursor)
    try:
        await attempt(undoing, cursor, node, (shared, result))
    except Park as park:
        raise UsageError(
            f"undo() of node {quoted(stage.path)} waits for a child run, which is not supported; do it in a node"
        ) from park
    except Exception as error:
        add_note(error, f"in undo() of node {quoted(stage.path)}, visit {cursor.visit}")
        raise
    finally:
        leave(token)


def _with_one_argument(undo: Hook) -> Hook:
    """Return ``undo`` as a hook with one argument, so that it is called like ``exec``."""
    if is_async(undo):

        async def call_async(node: Any, given: tuple[Any, Any]) -> Any:
            return await undo(node, *given)

        return call_async
    return lambda node, given: undo(node, *given)


async def undo_in_memory(run: Execution, shared: Any, error: Exception) -> None:
    """Undo the nodes that a run without a storage has completed, the last one first, and add their errors to its own.

    Nobody can retry an ``undo`` that has failed here, so the others run all the same.
    """
    failures: list[Exception] = []
    while run.completed:
        stage, node, visit, result = run.completed.pop()
        try:
            await undo_node(stage, Cursor(run, stage.path, visit=visit), node, shared, result)
        except Exception as failure:  # noqa: BLE001 - it must not hide the error of the run
            add_note(error, f"undo() of node {quoted(stage.path)} failed with {summary_of(failure)}")
            failures.append(failure)
    attach(error, failures)
