"""The runner: walks a compiled flow, one node after the other, in plain and in durable runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from types import CoroutineType
from typing import Any, TypeVar

from stepwell.errors import TooManySteps, UsageError
from stepwell.nodes.engine.branch import Branch, Park
from stepwell.nodes.engine.failure import inside_cancelled
from stepwell.nodes.engine.gate import Gate
from stepwell.nodes.engine.journal import Journal
from stepwell.nodes.engine.plan import Graph, Program, Stage
from stepwell.nodes.engine.position import Cursor, enter, leave, new_flow_id
from stepwell.nodes.engine.workgroup import group_of, marks_of, was_marked_by
from stepwell.nodes.events import Emit
from stepwell.nodes.node import END, BaseNode

__all__ = ["Run", "copy_node", "drive", "run_nested", "run_nested_durable", "run_root", "walk"]

T = TypeVar("T")

_new = object.__new__


class Run:
    """What the parts of one run share; it lives exactly as long as the run."""

    __slots__ = (
        "_flow_id",
        "_marked",
        "_program",
        "_steps",
        "_task",
        "by_hand",
        "concurrency",
        "emit",
        "gates",
        "max_steps",
        "name",
        "visits",
    )

    def __init__(
        self,
        program: Program,
        *,
        name: str,
        by_hand: bool,
        flow_id: str | None = None,
        concurrency: int | None = None,
        emit: Emit | None = None,
    ) -> None:
        self.name = name
        self.by_hand = by_hand
        self.emit = emit
        #: How often each stage was visited, by its index.
        self.visits = [0] * len(program.stages)
        #: How many nodes it may visit in all, those of nested flows and branches among them.
        self._program = program
        self._steps: int | None = None
        self.max_steps = None if program.root.graph is None else program.root.graph.max_steps
        #: The run's own bound, which takes the place of its outermost flow's.
        self.concurrency = concurrency
        self.gates: dict[Graph, asyncio.Semaphore] = {}
        #: The task that began the run, and how often it was cancelled before that.
        self._task = None if by_hand else asyncio.current_task()
        self._marked = 0 if self._task is None else marks_of(self._task)
        # In a list, since it is made when it is first asked for: most runs never need it.
        self._flow_id = [] if flow_id is None else [flow_id]

    @property
    def flow_id(self) -> str:
        if not self._flow_id:
            # Two threads may get here together: append is atomic, and the first one counts.
            self._flow_id.append(new_flow_id(self.name))
        return self._flow_id[0]

    async def sleep(self, seconds: float) -> None:
        if self.by_hand:
            time.sleep(seconds)  # noqa: ASYNC251 - driven by hand there is no loop to hold up
        else:
            await asyncio.sleep(seconds)

    def cancelling(self, error: BaseException | None = None) -> bool:
        """Whether somebody wants the running task to end; ``error`` is what its work has just raised."""
        if self.by_hand:
            return False
        task = asyncio.current_task()
        if task is None:
            return False
        if task is not self._task and (group := group_of(task)) is not None:
            return group.ending()
        count = task.cancelling() - (self._marked if task is self._task else 0)
        if count == 1 and was_marked_by(error):
            count -= 1
            task.uncancel()
        return count > 0

    def bound(self, graph: Graph) -> int | None:
        """How many nodes one walk of a graph may visit. The outermost is bounded together with all that is inside."""
        return None if graph is self._program.root.graph else graph.max_steps

    def check_steps(self, stage: Stage) -> None:
        """Raise if a visit of this stage were one too many. A flow is as many as the nodes inside it."""
        if self.max_steps is None or stage.graph is not None:
            return
        if self._steps is None:
            # A run that is resumed has some already.
            self._steps = sum([self.visits[known.index] for known in self._program.stages if known.graph is None])
        if self._steps >= self.max_steps:
            raise TooManySteps(self.name, self.max_steps, stage.name)
        self._steps += 1

    def gate(self, stage: Stage) -> Gate | None:
        """What an ``exec`` of this stage has to pass, or ``None`` if nothing bounds it."""
        if self.by_hand or not stage.gates:
            return None
        passes = []
        for graph in stage.gates:
            limit = graph.limit
            if graph is stage.gates[-1] and self.concurrency is not None:
                limit = self.concurrency
            if limit is not None:
                passes.append(self.gates.get(graph) or self.gates.setdefault(graph, asyncio.Semaphore(limit)))
        return Gate(passes) if passes else None


async def run_root(
    root: Stage, run: Run, shared: Any, params: Mapping[str, Any], journal: Journal | None = None
) -> Any:
    """Run the outermost stage, from ``prep`` to ``post``, and return what its ``post`` returned.

    A durable run begins where its journal says. Its caller emits ``run.finished`` and ``run.parked``, once that is
    committed.
    """
    branch = None if journal is None else Branch(journal, "", shared)
    cursor = Cursor(run, root.path, branch=branch)
    token = enter(cursor)
    emit = run.emit
    if emit is not None:
        emit("run.started", cursor)
    try:
        if root.graph is not None and root.bare and branch is None:
            result = await walk(root.graph, cursor, shared, {**root.node.params, **params})
        else:
            result = await _visit_root(root, cursor, shared, params)
    except Park:
        raise
    except BaseException as error:
        if journal is not None:
            journal.blame(root, error)
        if emit is not None:
            emit("run.failed", Cursor(run, root.path), error=error)
        raise
    finally:
        leave(token)
    if emit is not None and journal is None:
        emit("run.finished", Cursor(run, root.path))
    return result


async def _visit_root(root: Stage, cursor: Cursor, shared: Any, params: Mapping[str, Any]) -> Any:
    visits, branch = cursor.run.visits, cursor.branch
    inside = visits[root.index] > 0
    visits[root.index] = 1
    node = copy_node(root, params)
    if root.durable is None:
        prep_res = root.prep(node, shared)
        if type(prep_res) is CoroutineType:
            prep_res = await prep_res
        if root.execute is None:
            exec_res = root.exec(node, prep_res)
            if type(exec_res) is CoroutineType:
                exec_res = await exec_res
        else:
            exec_res = await root.execute(root, cursor, node, prep_res, shared)
    else:
        prep_res, exec_res = await root.durable(root, cursor, node, shared, inside)
    cursor.node, cursor.visit, cursor.item, cursor.attempt = root.path, 1, None, 1
    result = root.post(node, shared, prep_res, exec_res)
    if type(result) is CoroutineType:
        result = await result
    if branch is not None and not root.bare:
        await branch.journal.check(root.path)
    return result


def copy_node(stage: Stage, params: Mapping[str, Any]) -> BaseNode:
    """The shallow copy of a stage's node that one visit works on."""
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

    Between two nodes the whole position is ``stage``, ``run.visits`` and ``shared``. A durable run begins at the node
    at which it was interrupted, and commits after each node.
    """
    run, branch = cursor.run, cursor.branch
    stage, inside = graph.start, False
    if branch is not None:
        stage, inside = branch.enter(graph)
    visits = run.visits
    emit = run.emit
    max_steps, most = run.bound(graph), run.max_steps
    steps = 0
    action: Any = None
    while stage is not None:
        if max_steps is not None:
            if steps >= max_steps:
                raise TooManySteps(graph.name, max_steps, stage.name)
            steps += 1
        cursor.node = stage.path
        index = stage.index
        if inside:
            cursor.visit = visits[index]
        else:
            if most is not None:
                run.check_steps(stage)
            visits[index] = cursor.visit = visits[index] + 1
        if emit is not None:
            emit("node.started", cursor)
        try:
            if stage.copier is None and stage.own_params:
                # copy_node() for nearly every node, without the call.
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
                await branch.complete(graph, stage, visits[index], following)
        except Park:
            raise
        except BaseException as error:
            failure = failure_of(stage, run, error)
            if branch is not None:
                branch.journal.blame(stage, failure)
            trace(stage, cursor, failure)
            if failure is error:
                raise
            raise failure from error
        if emit is not None:
            emit("node.finished", cursor)
        stage = following
    return None if action is END else action


async def run_nested(stage: Stage, cursor: Cursor, node: Any, prep_res: Any, shared: Any) -> Any:
    """Run a flow inside a flow, and return its last action."""
    assert stage.graph is not None
    return await walk(stage.graph, cursor, shared, node.params)


async def run_nested_durable(stage: Stage, cursor: Cursor, node: Any, shared: Any, inside: bool) -> tuple[Any, Any]:
    """Run a flow of a durable run, or the rest of it; return what its ``prep`` returned, and its last action."""
    branch = cursor.branch
    assert branch is not None
    assert stage.graph is not None
    prep_res = await branch.prep(stage, cursor.run.visits[stage.index], node, shared, inside)
    if inside and stage.key in branch.journal.open:
        return prep_res, branch.journal.open[stage.key]
    action = await walk(stage.graph, cursor, shared, node.params)
    if not stage.bare:
        # If its own post fails, the last node inside must not run again.
        branch.end(stage, action)
        await branch.save(stage.path)
    return prep_res, action


def failure_of(stage: Stage, run: Run, error: BaseException) -> BaseException:
    """What a node ends with: a cancellation that nobody asked the run for is a failure of its own."""
    if isinstance(error, asyncio.CancelledError) and not run.by_hand and not run.cancelling():
        return inside_cancelled(f"node {stage.path!r}", error)
    return error


def trace(stage: Stage, cursor: Cursor, error: BaseException) -> None:
    """Say in an error where it happened, and tell the subscribers."""
    run = cursor.run
    if stage.leaf and isinstance(error, Exception):
        error.add_note(f"in node {stage.path!r} of flow {run.name!r}, visit {run.visits[stage.index]}")
    if run.emit is not None:
        cursor.node, cursor.visit, cursor.item = stage.path, run.visits[stage.index], None
        run.emit("node.failed", cursor, error=error)


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, in the caller's thread and without a loop."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    work.close()
    raise UsageError(
        "a node of this flow awaits something, but none of its hooks is an async def, so run_sync() runs it "
        "without an event loop; declare the hook async def, or await flow.run()"
    )
