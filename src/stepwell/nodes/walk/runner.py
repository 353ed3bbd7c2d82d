"""The runner: walks the stages of a compiled flow, in plain and in durable runs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from time import monotonic, perf_counter
from types import CoroutineType
from typing import Any, TypeVar

from stepwell._secrets import quoted
from stepwell.errors import InvalidAction, Parked, TooManySteps, UnknownAction, UnknownOutcome, UsageError
from stepwell.nodes.effects import unknown_in
from stepwell.nodes.graph.base import END, BaseNode, apply_updates
from stepwell.nodes.graph.hook_check import missing_prep
from stepwell.nodes.graph.hooks import call_hook
from stepwell.nodes.graph.plan import Graph, Stage
from stepwell.nodes.run.branch import Branch, Park, park_in
from stepwell.nodes.run.errors import message_of
from stepwell.nodes.run.journal import Journal
from stepwell.nodes.walk.execution import CaughtError, Cursor, Execution, enter, leave
from stepwell.nodes.walk.on_error import add_note, exit_of, inside_cancelled
from stepwell.nodes.walk.undo import undo_in_memory

__all__ = ["caught_in", "copy_node", "drive", "run_root", "walk"]

T = TypeVar("T")

_new = object.__new__
#: In the place of the result of ``exec`` until it has one, and again when the node has completed.
_NONE: Any = object()


async def run_root(
    root: Stage, run: Execution, shared: Any, params: Mapping[str, Any], journal: Journal | None = None
) -> Any:
    """Run the outermost stage, from ``prep`` to ``post``, and return the result of its ``post``.

    A durable run begins at the position in its journal. Its caller emits ``run.finished``, ``run.parked`` and
    ``run.cancelled`` after the commit.
    """
    branch = None if journal is None else Branch(journal, "", shared)
    cursor = Cursor(run, root.path, branch=branch)
    if branch is not None:
        cursor.caught = caught_in(branch)
    token = enter(cursor)
    if run.emit is not None and not run.began:
        run.began = run.emit("run.started", cursor, **run.beginning)
    try:
        if root.graph is not None and root.bare:
            result = await _run_bare(root, cursor, shared, params)
        else:
            inside, run.visits[root.index] = run.visits[root.index] > 0, 1
            node = copy_node(root, params)
            prep_res, exec_res = await _run_inside(root, cursor, node, shared, inside)
            result = await call_hook(root.post, node, shared, prep_res, exec_res)
            if isinstance(result, tuple) and root.node._returns_updates:
                result = apply_updates(root.path, result, shared)
            if journal is not None:
                await journal.check(root.path)
    except Park:
        raise
    except BaseException as error:
        failure = error
        if journal is not None:
            failure = _storable(f"flow {quoted(root.path)}", error, in_thread=False) or error
            journal.errors.note(root.path, failure, cursor.attempt, leaf=root.leaf)
        elif run.completed and isinstance(error, Exception):
            await undo_in_memory(run, shared, error)
        if not (isinstance(error, asyncio.CancelledError) and (run.cancels or (journal and journal.mailbox.cancel))):
            run.end("run.failed", error=failure)
        if failure is error:
            raise
        raise failure from error
    finally:
        leave(token)
    if journal is None and run.emit is not None:
        run.end("run.finished")
    return result


async def _run_bare(root: Stage, cursor: Cursor, shared: Any, params: Mapping[str, Any]) -> Any:
    """Run a flow without hooks of its own, and return its last action."""
    assert root.graph is not None
    visits, branch = cursor.run.visits, cursor.branch
    if branch is not None:
        if not visits[root.index]:
            visits[root.index] = 1
            branch.begin(root, 1, None)
        if "" in branch.journal.open:
            # All nodes had completed, and a deploy has removed post() of the flow.
            return branch.journal.open[""]
    return await walk(root.graph, cursor, shared, {**root.node.params, **params})


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

    A durable run begins at the node at which it was interrupted, and commits after each node. Hooks of plain nodes are
    called here: a function for each visit takes a fifth of its time.
    """
    run, branch, emit = cursor.run, cursor.branch, cursor.run.emit
    stage, inside = (graph.start, False) if branch is None else branch.enter(graph)
    # Execution.check_steps() limits the outermost graph.
    max_steps = None if graph is run.program.root.graph else graph.flow.max_steps
    steps, began, started = 0, 0.0, 0.0
    action: Any = None
    while stage is not None:
        if max_steps is not None and steps >= max_steps:
            raise TooManySteps(graph.name, max_steps, stage.name)
        steps += 1
        cursor.node = stage.path
        if not inside:
            if run.max_steps is not None:
                run.check_steps(stage)
            run.visits[stage.index] += 1
        cursor.visit = visit = run.visits[stage.index]
        # Only a graph that visits a node many times can keep the event loop for long.
        if not visit & 31 and perf_counter() > run.yield_at:
            await run.yield_now()
        if branch is not None:
            started, cursor.attempts, cursor.effects = monotonic(), 1, None
        if emit is not None:
            began = emit("node.started", cursor)
        exec_res: Any = _NONE
        try:
            if branch is not None and stage.path in branch.journal.parts.loaded and not stage.commits_inside:
                branch.journal.effects.check(stage.path, visit)
            node = copy_node(stage, params)
            if stage.execute is None and not stage.commits_inside:
                prep_res = stage.prep(node, shared)
                if type(prep_res) is CoroutineType:
                    prep_res = await prep_res
                returned = stage.exec(node, prep_res)
                exec_res = await returned if type(returned) is CoroutineType else returned
            else:
                prep_res, exec_res = await _run_inside(stage, cursor, node, shared, inside)
            action = stage.post(node, shared, prep_res, exec_res)
            if type(action) is CoroutineType:
                action = await action
            try:
                following = stage.edges[action]
            except (KeyError, TypeError):
                action, following = graph.flow._leave(stage, action, shared)
            if branch is not None and branch.journal.keeps_values:
                branch.journal.last_values = (prep_res, exec_res)
            if stage.undo is not None:
                result, exec_res = exec_res, _NONE
                _note_result(stage, cursor, node, result)
            if branch is not None:
                attempts = 1 if stage.commits_inside else cursor.attempts
                await branch.complete(
                    graph, stage, following, action=action, visit=visit, attempts=attempts, started=started
                )
        except BaseException as error:
            failure = await _failure_of_visit(stage, cursor, error, began)
            if stage.undo is not None and exec_res is not _NONE and not isinstance(failure, Park):
                # It is only post() that has failed.
                _note_result(stage, cursor, node, exec_res)
            edge = _edge_of(graph, stage, cursor, failure)
            if edge is None:
                if failure is error:
                    raise
                raise failure from (None if isinstance(failure, Park) else error)
            action, following = edge, await _follow_error(graph, stage, cursor, failure, started, edge=edge)
        else:
            if emit is not None:
                emit("node.finished", cursor, began=began)
        # After the last node there is nothing left to pause.
        if branch is not None and following is not None and (run.drain.asked or branch.journal.mailbox.pausing):
            branch.journal.handed_over = run.drain.asked
            raise Park
        stage, inside = following, False
    return None if action is END else action


async def _failure_of_visit(stage: Stage, cursor: Cursor, error: BaseException, began: float) -> BaseException:
    """Return what to raise for an error of a visit, after a durable run has recorded it, or that the node waits."""
    branch = cursor.branch
    if branch is not None:
        park = error if isinstance(error, Park) else park_in(error)
        if park is not None:
            if park is not error:
                # The task group that raised it has cancelled this task.
                cursor.run.cancelling(error)
            await branch.wait(stage, park)
            return park
    failure = failure_of(stage, cursor, error)
    if branch is not None:
        if isinstance(failure, Exception) and branch.journal.broken is None and not cursor.run.cancelling(failure):
            try:
                branch.journal.effects.check(stage.path, cursor.run.visits[stage.index], error=failure)
            except UnknownOutcome as unknown:
                failure = unknown
        branch.journal.errors.note(stage.path, failure, cursor.attempt, leaf=stage.leaf)
    trace(stage, cursor, failure, began)
    return failure


def _note_result(stage: Stage, cursor: Cursor, node: BaseNode, result: Any) -> None:
    """Remember what a node has to undo, until the run has ended."""
    if cursor.branch is not None:
        cursor.branch.journal.note_result(stage.path, cursor.visit, result)
    else:
        cursor.run.completed.append((stage, node, cursor.visit, result))


def _edge_of(graph: Graph, stage: Stage, cursor: Cursor, failure: BaseException) -> str | None:
    """Return the edge of a node that catches its final error: ``"unknown"`` an unknown outcome, ``"error"`` all others.

    An action without an edge and too many steps are errors of the graph, not of the node.
    """
    edge = "error" if unknown_in(failure) is None else "unknown"
    caught = (
        isinstance(failure, Exception)
        and graph.flow._catches
        and edge in stage.edges
        and not isinstance(failure, InvalidAction | TooManySteps | UnknownAction)
        # After a failed commit the run has no position to go on from.
        and (cursor.branch is None or cursor.branch.journal.broken is None)
        and not cursor.run.cancelling(failure)
    )
    return edge if caught else None


async def _follow_error(
    graph: Graph, stage: Stage, cursor: Cursor, error: BaseException, started: float, *, edge: str
) -> Stage | None:
    """Complete a node whose error was caught, and return the next one."""
    following = stage.edges[edge]
    attempts = 1 if stage.commits_inside else cursor.attempt
    visit = cursor.run.visits[stage.index]
    cursor.node, cursor.visit, cursor.item, cursor.attempt = stage.path, visit, None, 1
    caught = cursor.caught = CaughtError(stage.path, type(error).__name__, message_of(error))
    if cursor.branch is not None:
        await cursor.branch.complete(
            graph, stage, following, action=edge, visit=visit, attempts=attempts, started=started, error=caught
        )
    return following


def caught_in(branch: Branch) -> CaughtError | None:
    """Return the last error that a branch had caught when its run was interrupted."""
    row = branch.journal.caught.get(branch.name)
    return None if row is None else CaughtError(*row)


async def _run_inside(stage: Stage, cursor: Cursor, node: Any, shared: Any, inside: bool) -> tuple[Any, Any]:
    """Run ``prep``, and ``exec`` with its attempts, items or nested nodes; return the results of both."""
    visit = cursor.visit
    if cursor.branch is not None and stage.commits_inside:
        prep_res, exec_res = await (stage.durable or run_nested_durable)(stage, cursor, node, shared, inside)
    else:
        prep_res = await call_hook(stage.prep, node, shared)
        if stage.execute is not None:
            exec_res = await stage.execute(stage, cursor, node, prep_res, shared)
        elif stage.graph is not None:
            exec_res = await walk(stage.graph, cursor, shared, node.params)
        else:
            exec_res = await call_hook(stage.exec, node, prep_res)
    # Retries, items and nested nodes have moved the cursor.
    cursor.node, cursor.visit, cursor.item, cursor.attempt = stage.path, visit, None, 1
    return prep_res, exec_res


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
        changed = _storable(f"node {quoted(stage.path)}", error, in_thread=stage.threaded)
        if changed is not None:
            return changed
    if isinstance(error, asyncio.CancelledError) and not run.without_loop and not run.cancelling():
        return inside_cancelled(f"node {quoted(stage.path)}", error)
    note = missing_prep(stage.node, error) if stage.leaf else None
    if note is not None:
        add_note(error, note)
    return error


def _storable(place: str, error: BaseException, *, in_thread: bool) -> Exception | None:
    """Return the error to store in place of one that a durable run cannot store; ``None`` for other errors."""
    if isinstance(error, Parked):
        # It would look as if this run waited, which has failed.
        return UsageError(
            f"{place} ran run {quoted(error.flow_id)}, which waits or is paused, and a node cannot wait for a run "
            "of run() or resume(); start it with step().child(), or make its flow a node of this flow"
        )
    return exit_of(place, error, in_thread=in_thread)


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
