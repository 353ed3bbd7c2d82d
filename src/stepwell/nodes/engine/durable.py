"""The durable runner: the walk of :mod:`stepwell.nodes.engine.runner` with one commit a node, and a way back in."""

from __future__ import annotations

from collections.abc import Mapping
from types import CoroutineType
from typing import Any

from stepwell.errors import TooManySteps
from stepwell.nodes.engine.branch import DurableCursor, Line
from stepwell.nodes.engine.journal import Journal
from stepwell.nodes.engine.plan import Graph, Stage
from stepwell.nodes.engine.position import Cursor, enter, leave
from stepwell.nodes.engine.runner import Run, copy_node, failure_of, trace
from stepwell.nodes.node import END

__all__ = ["Park", "kept_prep", "run_nested", "run_root", "walk"]


class Park(Exception):
    """A line cannot go on before somebody answers, or before its time. Never seen outside."""


async def run_root(run: Run, journal: Journal, params: Mapping[str, Any]) -> Any:
    """Run the outermost flow from where its journal stands, and return what its ``post`` returned."""
    root, shared = journal.program.root, journal.shared
    cursor = DurableCursor(run, root.path, Line(journal, "", shared))
    token = enter(cursor)
    emit = run.emit
    if emit is not None:
        emit("run.started", cursor)
    try:
        inside = journal.visits[root.index] > 0
        run.visits[root.index] = 1
        node = copy_node(root, params)
        prep_res, action = await run_nested(root, cursor, node, shared, inside)
        cursor.node, cursor.visit, cursor.item, cursor.attempt = root.path, 1, None, 1
        result = root.post(node, shared, prep_res, action)
        if type(result) is CoroutineType:
            result = await result
        if not root.bare:
            await journal.check(root.path)
    except Park:
        if emit is not None:
            emit("run.parked", Cursor(run, root.path))
        raise
    except BaseException as error:
        journal.blame(root, error)
        if emit is not None:
            emit("run.failed", Cursor(run, root.path), error=error)
        raise
    finally:
        leave(token)
    return result


async def walk(graph: Graph, cursor: DurableCursor, shared: Any, params: Mapping[str, Any]) -> Any:
    """Run a graph to its end, from its start or from where the run was left, and return the last action.

    Each node is committed before the next one runs, except the last: whoever walks the graph does that.
    """
    run, line = cursor.run, cursor.line
    journal = line.journal
    visits = run.visits
    emit = run.emit
    max_steps = run.bound(graph)
    begun, inside = line.enter(graph)
    stage: Stage | None = begun
    steps = 0
    action: Any = None
    while stage is not None:
        if max_steps is not None:
            if steps >= max_steps:
                raise TooManySteps(graph.name, max_steps, stage.name)
            steps += 1
        if not inside:
            run.check_steps(stage)
        index = stage.index
        if not inside:
            visits[index] += 1
        cursor.node, cursor.visit = stage.path, visits[index]
        if emit is not None:
            emit("node.started", cursor)
        try:
            node = copy_node(stage, params)
            if stage.durable is not None:
                prep_res, exec_res = await stage.durable(stage, cursor, node, shared, inside)
                cursor.node, cursor.visit, cursor.item, cursor.attempt = stage.path, visits[index], None, 1
            else:
                prep_res = stage.prep(node, shared)
                if type(prep_res) is CoroutineType:
                    prep_res = await prep_res
                if stage.execute is None:
                    exec_res = stage.exec(node, prep_res)
                    if type(exec_res) is CoroutineType:
                        exec_res = await exec_res
                else:
                    exec_res = await stage.execute(stage, cursor, node, prep_res, shared)
                    cursor.node, cursor.visit, cursor.item, cursor.attempt = stage.path, visits[index], None, 1
            action = stage.post(node, shared, prep_res, exec_res)
            if type(action) is CoroutineType:
                action = await action
            try:
                following = stage.edges[action]
            except (KeyError, TypeError):
                action, following = graph.flow._leave(stage, action, shared)
            line.complete(stage, visits[index], following)
            if following is not None:
                await line.save(stage.path)
            elif graph is journal.program.root.graph:
                await journal.check(stage.path)
        except Park:
            raise
        except BaseException as error:
            failure = failure_of(stage, run, error)
            journal.blame(stage, failure)
            trace(stage, cursor, failure)
            if failure is error:
                raise
            raise failure from error
        if emit is not None:
            emit("node.finished", cursor)
        stage, inside = following, False
    return None if action is END else action


async def run_nested(stage: Stage, cursor: Any, node: Any, shared: Any, inside: bool) -> tuple[Any, Any]:
    """Run a flow, or go on inside it; what its ``prep`` returned, and its last action."""
    line: Line = cursor.line
    journal = line.journal
    assert stage.graph is not None
    prep_res = await kept_prep(stage, cursor, node, shared, inside)
    if inside and stage.key in journal.open:
        return prep_res, journal.open[stage.key]
    action = await walk(stage.graph, cursor, shared, node.params)
    if not stage.bare:
        # Its own post is yet to come, and the last node inside must not run again if that fails.
        line.end(stage, action)
        await line.save(stage.path)
    return prep_res, action


async def kept_prep(stage: Stage, cursor: Any, node: Any, shared: Any, inside: bool) -> Any:
    """What ``prep`` returns, or has returned if the run was left inside this node."""
    line: Line = cursor.line
    if inside:
        return line.journal.part(stage.key, "prep")
    prep_res = stage.prep(node, shared)
    if type(prep_res) is CoroutineType:
        prep_res = await prep_res
    line.begin(stage, cursor.run.visits[stage.index], prep_res)
    return prep_res
