"""The runner: walks the stages of a compiled flow, in plain and in durable runs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from time import monotonic, perf_counter
from types import CoroutineType
from typing import Any, TypeVar

from stepwell._secrets import quoted
from stepwell.errors import Parked, TooManySteps, UsageError
from stepwell.nodes.graph.base import END, BaseNode
from stepwell.nodes.graph.hook_check import missing_prep
from stepwell.nodes.graph.hooks import call_hook
from stepwell.nodes.graph.plan import Graph, Stage
from stepwell.nodes.run.branch import Branch, Park, park_in
from stepwell.nodes.run.journal import Journal
from stepwell.nodes.walk.cursor import Cursor, enter, leave
from stepwell.nodes.walk.execution import Execution
from stepwell.nodes.walk.on_error import add_note, exit_of, inside_cancelled

__all__ = ["copy_node", "drive", "run_nested", "run_nested_durable", "run_root", "walk"]

T = TypeVar("T")

_new = object.__new__

#: How many visits of a node pass between two checks whether to let the event loop run other tasks.
_UNCHECKED = 32
#: More visits than any run has. CPython compares integers below 2**30 quickly.
_NEVER = 2**29


async def run_root(
    root: Stage, run: Execution, shared: Any, params: Mapping[str, Any], journal: Journal | None = None
) -> Any:
    """Run the outermost stage, from ``prep`` to ``post``, and return the result of its ``post``.

    A durable run begins at the position in its journal. Its caller emits ``run.finished``, ``run.parked`` and
    ``run.cancelled`` after the commit.
    """
    cursor, branch = Cursor(run, root.path), None
    if journal is not None:
        cursor.branch = branch = Branch(journal, "", shared)
    token = enter(cursor)
    if run.emit is not None and not run.began:
        run.began = run.emit("run.started", cursor)
    try:
        if root.graph is not None and root.bare:
            if branch is not None and not run.visits[root.index]:
                run.visits[root.index] = 1
                branch.begin(root, 1, None)
            if branch is not None and "" in branch.journal.open:
                # All nodes had completed, and a deploy has removed post() of the flow.
                result = branch.journal.open[""]
            else:
                result = await walk(root.graph, cursor, shared, {**root.node.params, **params})
        else:
            result = await _visit_root(root, cursor, shared, params)
    except Park:
        raise
    except BaseException as error:
        failure = error
        if journal is not None:
            place = f"flow {quoted(root.path)}"
            failure = exit_of(place, error, in_thread=False) or _other_run_waits(place, error) or error
            journal.note_error(root, failure, cursor.attempt)
        if not (isinstance(error, asyncio.CancelledError) and (run.cancels or (journal and journal.cancel))):
            run.end("run.failed", error=failure)
        if failure is error:
            raise
        raise failure from error
    finally:
        leave(token)
    if journal is None and run.emit is not None:
        run.end("run.finished")
    return result


async def _visit_root(root: Stage, cursor: Cursor, shared: Any, params: Mapping[str, Any]) -> Any:
    visits, branch = cursor.run.visits, cursor.branch
    inside = visits[root.index] > 0
    visits[root.index] = 1
    node = copy_node(root, params)
    if root.durable is not None:
        prep_res, exec_res = await root.durable(root, cursor, node, shared, inside)
    else:
        prep_res = await call_hook(root.prep, node, shared)
        if root.execute is None:
            exec_res = await call_hook(root.exec, node, prep_res)
        else:
            exec_res = await root.execute(root, cursor, node, prep_res, shared)
    cursor.node, cursor.visit, cursor.item, cursor.attempt = root.path, 1, None, 1
    result = await call_hook(root.post, node, shared, prep_res, exec_res)
    if branch is not None:
        await branch.journal.check(root.path)
    return result


def copy_node(stage: Stage, params: Mapping[str, Any]) -> BaseNode:
    """Return the shallow copy of a stage's node for one visit."""
    source = stage.node
    if stage.copier is None:
        node: BaseNode = _new(stage.cls)
        node.__dict__ = source.__dict__.copy()
    else:
        node = stage.copier(source)
    node.params = {**source.params, **params} if stage.own_params else params  # type: ignore[assignment]
    return node


async def walk(graph: Graph, cursor: Cursor, shared: Any, params: Mapping[str, Any]) -> Any:
    """Run a graph to its end on a shared state, and return the last action.

    A durable run begins at the node at which it was interrupted, and commits after each node. Hooks are called here,
    without helper functions: a call more is 5 % of a node.
    """
    run, branch = cursor.run, cursor.branch
    stage, inside = graph.start, False
    if branch is not None:
        stage, inside = branch.enter(graph)
    visits = run.visits
    emit = run.emit
    most = run.max_steps
    # check_steps() limits the outermost graph.
    max_steps = None if graph is run.program.root.graph else graph.flow.max_steps
    steps, began, started = 0, 0.0, 0.0
    unchecked = _NEVER if run.without_loop else _UNCHECKED
    action: Any = None
    while stage is not None:
        if max_steps is not None:
            if steps >= max_steps:
                raise TooManySteps(graph.name, max_steps, stage.name)
            steps += 1
        cursor.node = stage.path
        index = stage.index
        if branch is not None:
            started, cursor.attempts = monotonic(), 1
        if inside:
            cursor.visit = visits[index]
        else:
            if most is not None:
                run.check_steps(stage)
            visits[index] = cursor.visit = visit = visits[index] + 1
            # Only a graph that visits a node many times can keep the event loop for long.
            if visit > unchecked:
                unchecked = visit + _UNCHECKED
                if perf_counter() > run.yield_at:
                    await run.yield_now()
        if emit is not None:
            began = emit("node.started", cursor)
        try:
            if stage.plainly_copied:
                # copy_node() without the call, for nearly every node.
                source = stage.node
                node = _new(stage.cls)
                node.__dict__ = source.__dict__.copy()
                node.params = {**source.params, **params}
            else:
                node = copy_node(stage, params)
            if stage.durable is None:
                prep_res = stage.prep(node, shared)
                if type(prep_res) is CoroutineType:
                    prep_res = await prep_res
                if stage.execute is None:
                    exec_res = stage.exec(node, prep_res)
                    if type(exec_res) is CoroutineType:
                        exec_res = await exec_res
                else:
                    exec_res = await stage.execute(stage, cursor, node, prep_res, shared)
                    # Retries, items and nested nodes have moved the cursor.
                    cursor.node, cursor.visit, cursor.item, cursor.attempt = stage.path, visits[index], None, 1
            else:
                prep_res, exec_res = await stage.durable(stage, cursor, node, shared, inside)
                cursor.node, cursor.visit, cursor.item, cursor.attempt = stage.path, visits[index], None, 1
                inside = False
            action = stage.post(node, shared, prep_res, exec_res)
            if type(action) is CoroutineType:
                action = await action
            try:
                following = stage.edges[action]
            except (KeyError, TypeError):
                action, following = graph.flow._leave(stage, action, shared)
            if branch is not None:
                attempts = cursor.attempts if stage.durable is None else 1
                commit = branch.complete(graph, stage, visits[index], following, started=started, attempts=attempts)
                if commit is not None:
                    await commit
                    # After the last node there is nothing left to pause.
                    if branch.journal.pausing and following is not None:
                        if emit is not None:
                            emit("node.finished", cursor, began=began)
                        raise Park
        except Park as park:
            if park.wait is not None and branch is not None:
                await branch.wait(stage, park)
            raise
        except BaseException as error:
            if branch is not None and (park_of_group := park_in(error)) is not None:
                run.cancelling(error)
                await branch.wait(stage, park_of_group)
                raise park_of_group from None
            failure = failure_of(stage, cursor, error)
            if branch is not None:
                branch.journal.note_error(stage, failure, cursor.attempt)
            trace(stage, cursor, failure, began)
            if failure is error:
                raise
            raise failure from error
        if emit is not None:
            emit("node.finished", cursor, began=began)
        stage = following
    return None if action is END else action


async def run_nested(stage: Stage, cursor: Cursor, node: Any, prep_res: Any, shared: Any) -> Any:
    """Run a flow inside a flow, and return its last action."""
    assert stage.graph is not None
    return await walk(stage.graph, cursor, shared, node.params)


async def run_nested_durable(stage: Stage, cursor: Cursor, node: Any, shared: Any, inside: bool) -> tuple[Any, Any]:
    """Run a nested flow of a durable run, or the rest of it; return the result of ``prep`` and the last action."""
    branch = cursor.branch
    assert branch is not None
    assert stage.graph is not None
    prep_res = await branch.prep(stage, cursor.run.visits[stage.index], node, shared, inside)
    if inside and stage.key in branch.journal.open:
        return prep_res, branch.journal.open[stage.key]
    action = await walk(stage.graph, cursor, shared, node.params)
    if not stage.bare:
        # If its own post fails, the last node inside does not run again.
        branch.end(stage, action)
        await branch.save(stage.path)
    return prep_res, action


def failure_of(stage: Stage, cursor: Cursor, error: BaseException) -> BaseException:
    """Return the error of a node.

    A cancellation from inside the run becomes ``WorkCancelled``. In a durable run ``SystemExit`` becomes
    ``NodeExited``, because the error must be stored, and ``Parked`` becomes ``UsageError``.
    """
    run = cursor.run
    if cursor.branch is not None:
        place = f"node {quoted(stage.path)}"
        changed = exit_of(place, error, in_thread=stage.threaded) or _other_run_waits(place, error)
        if changed is not None:
            return changed
    if isinstance(error, asyncio.CancelledError) and not run.without_loop and not run.cancelling():
        return inside_cancelled(f"node {quoted(stage.path)}", error)
    note = missing_prep(stage.node, error) if stage.leaf else None
    if note is not None:
        add_note(error, note)
    return error


def _other_run_waits(place: str, error: BaseException) -> UsageError | None:
    """Return the error for a hook that has run another durable run which waits; ``None`` for other errors.

    Its ``Parked`` would look as if this run waited, which has failed.
    """
    if not isinstance(error, Parked):
        return None
    return UsageError(
        f"{place} ran run {quoted(error.flow_id)}, which waits or is paused, and a node cannot wait for a run "
        "of run() or "
        "resume(); start it with step().child(), or make its flow a node of this flow"
    )


def trace(stage: Stage, cursor: Cursor, error: BaseException, began: float) -> None:
    """Add a note to the error of a leaf, and emit ``node.failed``."""
    run = cursor.run
    if stage.leaf and isinstance(error, Exception):
        add_note(error, f"in node {quoted(stage.path)} of flow {quoted(run.name)}, visit {run.visits[stage.index]}")
    if run.emit is not None:
        cursor.node, cursor.visit, cursor.item = stage.path, run.visits[stage.index], None
        run.emit("node.failed", cursor, began=began, error=error)


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, in the calling thread and without a loop."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    work.close()
    raise UsageError(
        "a node of this flow awaits something, but none of its hooks is an async def, so run_sync() runs it "
        "without an event loop; declare the hook async def, or await flow.run()"
    )
