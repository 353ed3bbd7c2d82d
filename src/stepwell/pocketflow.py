"""PocketFlow's eleven classes on Stepwell's runner.

To move a PocketFlow program to Stepwell, replace ``from pocketflow import Node, Flow`` with
``from stepwell.pocketflow import Node, Flow``. Actions, warnings, params and copies are those of PocketFlow. Four
bugs are fixed: parallel items do not share their retry counter, ``max_retries=0`` raises an error and does not skip
``exec``, an async batch treats ``None`` from ``prep`` as no items, and if one of several parallel items fails, the
others are cancelled and awaited before the error is raised.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sized
from typing import TYPE_CHECKING, Any, ClassVar

from stepwell._secrets import quoted
from stepwell.nodes.batch.items import BatchSettings, run_items
from stepwell.nodes.events import emitter
from stepwell.nodes.graph.base import BaseFlow, Edge, End
from stepwell.nodes.graph.base import BaseNode as StepwellNode
from stepwell.nodes.graph.hooks import Hooks, call_hook, hook_of
from stepwell.nodes.graph.plan import Program, program_of, reach
from stepwell.nodes.graph.policy import ExecPolicy
from stepwell.nodes.walk.attempts import attempt_node
from stepwell.nodes.walk.execution import Cursor, Execution, current, enter
from stepwell.nodes.walk.on_error import conclude, inside_cancelled, together
from stepwell.nodes.walk.runner import drive, run_root, walk
from stepwell.nodes.walk.workgroup import Halt

if TYPE_CHECKING:
    from stepwell.nodes.graph.plan import Build, Stage, Strategy

__all__ = [
    "AsyncBatchFlow",
    "AsyncBatchNode",
    "AsyncFlow",
    "AsyncNode",
    "AsyncParallelBatchFlow",
    "AsyncParallelBatchNode",
    "BaseNode",
    "BatchFlow",
    "BatchNode",
    "Flow",
    "Node",
]


class _CurRetry:
    """PocketFlow's ``self.cur_retry``, taken from the current attempt, so that items do not share it."""

    def __get__(self, node: object, owner: type) -> int:
        cursor = current()
        return 0 if cursor is None else cursor.attempt - 1


class BaseNode(StepwellNode):
    """A node that calls ``prep``, ``exec`` and ``post`` once each, without retries."""

    _settings: ClassVar[tuple[str, ...]] = ("successors", "prep", "exec", "post")
    _own_params = False
    _returns_updates = False
    # PocketFlow calls only its own names.
    _strict_hooks = False

    def __init__(self) -> None:
        super().__init__()

    def set_params(self, params: dict[str, Any]) -> None:
        self.params = params

    def next(self, node: Any, action: str = "default") -> Any:
        if action in self.successors:
            warnings.warn(f"Overwriting successor for action '{action}'", stacklevel=2)
        self.successors[action] = node
        return node

    def __rshift__(self, node: Any) -> Any:
        return self.next(node)

    def __sub__(self, action: str) -> Edge:
        if isinstance(action, str):
            return Edge(self, action)
        raise TypeError("Action must be a string")

    def exec(self, prep_res: Any, /) -> Any:
        pass

    def run(self, shared: Any) -> Any:
        if self.successors:
            warnings.warn("Node won't run successors. Use Flow.", stacklevel=2)
        return self._run(shared)

    def _run(self, shared: Any) -> Any:
        program = self._compiled(without_loop=True)
        run = _new_execution(program, self, without_loop=True)
        return drive(run_root(program.root, run, shared, self.params))

    def _compiled(self, *, without_loop: bool) -> Program:
        program = program_of(self, without_loop=without_loop)
        # PocketFlow copies the nodes inside a flow, but not the node that is run.
        program.root.copier = lambda node: node
        return program

    def _strategy(self, build: Build, stage: Stage) -> Strategy | None:
        return None


class Node(BaseNode):
    """A node with up to ``max_retries`` attempts of ``exec``."""

    _settings: ClassVar[tuple[str, ...]] = (*BaseNode._settings, "max_retries", "wait", "exec_fallback")

    cur_retry: ClassVar[_CurRetry] = _CurRetry()

    def __init__(self, max_retries: int = 1, wait: float = 0) -> None:
        super().__init__()
        self.max_retries: int = max_retries
        self.wait: float = wait
        # Raises InvalidOption for an invalid value.
        self._attempts()

    def exec_fallback(self, prep_res: Any, exc: Exception, /) -> Any:
        raise exc

    def _attempts(self) -> ExecPolicy:
        return ExecPolicy(max_retries=self.max_retries, wait=max(self.wait, 0), inline=True)

    def _strategy(self, build: Build, stage: Stage) -> Strategy | None:
        stage.policy = self._attempts()
        stage.has_fallback = stage.fallback not in (Node.exec_fallback, AsyncNode.exec_fallback_async)
        return None if stage.policy.plain and not stage.has_fallback else attempt_node


class BatchNode(Node):
    """A node whose ``exec`` runs on each item, one after the other."""

    def _strategy(self, build: Build, stage: Stage) -> Strategy | None:
        super()._strategy(build, stage)
        stage.items = _items
        stage.extra = BatchSettings()
        return run_items


class Flow(BaseNode, BaseFlow):
    """A graph of nodes, from ``start_node`` along the actions."""

    _settings: ClassVar[tuple[str, ...]] = ("successors", "start_node", "prep", "post")

    def __init__(self, start: Any = None) -> None:
        super().__init__()
        self.start_node: Any = start

    def start(self, start: Any) -> Any:
        self.start_node = start
        return start

    def post(self, shared: Any, prep_res: Any, exec_res: Any, /) -> Any:
        return exec_res

    def _strategy(self, build: Build, stage: Stage) -> Strategy | None:
        outside, build.without_loop = build.without_loop, True
        build.nest(self, stage)
        build.without_loop = outside
        return None

    def _reachable(self) -> list[StepwellNode]:
        return reach(self.start_node, self._edges_of)

    def _edges_of(self, node: StepwellNode) -> Mapping[str, StepwellNode | End]:
        return {action: target for action, target in node.successors.items() if isinstance(target, StepwellNode)}

    def _table(self, edges: dict[str, Stage | None]) -> dict[Any, Stage | None]:
        return {**edges, None: edges["default"], "": edges["default"]} if "default" in edges else dict(edges)

    def _leave(self, stage: Stage, result: Any, shared: Any) -> tuple[Any, Stage | None]:
        following = stage.edges.get(result or "default")
        if following is None and stage.node.successors:
            known = list(stage.node.successors)
            warnings.warn(f"Flow ends: '{result}' not found in {known}", stacklevel=2)
        return result, following


class BatchFlow(Flow):
    """A flow that runs once for each set of params that ``prep`` returns."""

    def _strategy(self, build: Build, stage: Stage) -> Strategy | None:
        super()._strategy(build, stage)
        stage.prep = _or_nothing(stage.prep)
        return run_one_by_one


class AsyncNode(Node):
    """A node whose hooks are coroutines, for ``AsyncFlow``."""

    _hooks = Hooks("prep_async", "exec_async", "post_async", "exec_fallback_async")
    _settings: ClassVar[tuple[str, ...]] = ("successors", "max_retries", "wait", *_hooks)

    async def prep_async(self, shared: Any, /) -> Any:
        pass

    async def exec_async(self, prep_res: Any, /) -> Any:
        pass

    async def exec_fallback_async(self, prep_res: Any, exc: Exception, /) -> Any:
        raise exc

    async def post_async(self, shared: Any, prep_res: Any, exec_res: Any, /) -> Any:
        pass

    async def run_async(self, shared: Any) -> Any:
        if self.successors:
            warnings.warn("Node won't run successors. Use AsyncFlow.", stacklevel=2)
        return await self._run_async(shared)

    async def _run_async(self, shared: Any) -> Any:
        program = self._compiled(without_loop=False)
        run = _new_execution(program, self, without_loop=False)
        return await run_root(program.root, run, shared, self.params)

    def _strategy(self, build: Build, stage: Stage) -> Strategy | None:
        if build.without_loop:
            stage.prep = _use_run_async
        return super()._strategy(build, stage)


class AsyncBatchNode(AsyncNode, BatchNode):
    """A node whose ``exec_async`` runs on each item, one after the other."""


class AsyncParallelBatchNode(AsyncNode, BatchNode):
    """A node whose ``exec_async`` runs on all items at once."""

    def _strategy(self, build: Build, stage: Stage) -> Strategy | None:
        strategy = super()._strategy(build, stage)
        stage.extra = BatchSettings(concurrency=None)
        stage.items = _all_items
        return strategy


class AsyncFlow(Flow, AsyncNode):
    """A graph of nodes and async nodes."""

    _settings: ClassVar[tuple[str, ...]] = (*Flow._settings, "prep_async", "post_async")

    async def post_async(self, shared: Any, prep_res: Any, exec_res: Any, /) -> Any:
        return exec_res

    def _strategy(self, build: Build, stage: Stage) -> Strategy | None:
        if build.without_loop:
            # run() of an AsyncFlow uses the hooks of Flow.
            stage.prep, stage.post = hook_of(self, "prep"), hook_of(self, "post")
            return super()._strategy(build, stage)
        build.nest(self, stage)
        return None


class AsyncBatchFlow(AsyncFlow, BatchFlow):
    """An async flow that runs once for each set of params, one after the other."""

    def _strategy(self, build: Build, stage: Stage) -> Strategy | None:
        outside = build.without_loop
        super()._strategy(build, stage)
        if not outside:
            stage.prep = _or_nothing(stage.prep)
        return run_one_by_one


class AsyncParallelBatchFlow(AsyncFlow, BatchFlow):
    """An async flow that runs for all sets of params at once."""

    def _strategy(self, build: Build, stage: Stage) -> Strategy | None:
        strategy = super()._strategy(build, stage)
        if build.without_loop:
            return strategy
        stage.prep = _or_nothing(stage.prep)
        return run_at_once


async def run_one_by_one(stage: Stage, cursor: Cursor, node: Any, prep_res: Any, shared: Any) -> None:
    """Run a flow's graph for one set of params after the other."""
    assert stage.graph is not None
    for params in prep_res:
        await walk(stage.graph, cursor, shared, {**node.params, **params})


async def run_at_once(stage: Stage, cursor: Cursor, node: Any, prep_res: Any, shared: Any) -> None:
    """Run a flow's graph for all sets of params concurrently; the first error cancels and awaits the others."""
    assert stage.graph is not None
    graph, run = stage.graph, cursor.run
    failures: list[Exception] = []

    async def one(params: Mapping[str, Any]) -> None:
        own = Cursor(run, stage.path)
        enter(own)
        try:
            await walk(graph, own, shared, {**node.params, **params})
        except Exception as error:  # noqa: BLE001 - conclude() raises it
            failures.append(error)
            raise Halt from None
        except asyncio.CancelledError as cancelled:
            if run.cancelling():
                raise
            failures.append(inside_cancelled(f"a run of {quoted(stage.path)}", cancelled))
            raise Halt from None

    await together([one(params) for params in prep_res], failures)
    conclude("stop", failures, "")


def _new_execution(program: Program, root: StepwellNode, *, without_loop: bool) -> Execution:
    name = type(root).__name__
    return Execution(program, name=name, without_loop=without_loop, emit=emitter(name, None))


def _items(stage: Stage, prep_res: Any) -> Iterable[Any] | AsyncIterable[Any]:
    return prep_res or ()


def _all_items(stage: Stage, prep_res: Any) -> Iterable[Any] | AsyncIterable[Any]:
    """Return the items as a list or another sized collection, because all of them start at once."""
    items = _items(stage, prep_res)
    return list(items) if isinstance(items, Iterable) and not isinstance(items, Sized) else items


def _or_nothing(prep: Callable[..., Any]) -> Callable[..., Any]:
    async def prep_or_nothing(node: Any, shared: Any) -> Any:
        return await call_hook(prep, node, shared) or []

    return prep_or_nothing


def _use_run_async(node: Any, shared: Any) -> Any:
    raise RuntimeError("Use run_async.")
