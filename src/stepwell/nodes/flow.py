"""A flow of nodes: how it is put together, and how it is run."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

from stepwell._portal import sync
from stepwell.errors import InsideLoop, InvalidAction, InvalidGraph, InvalidOption, UnknownAction, UsageError
from stepwell.nodes.batch import check_concurrency
from stepwell.nodes.diagram import mermaid
from stepwell.nodes.engine import monitor, runs
from stepwell.nodes.engine.plan import Program, Stage, compile_flow, reach
from stepwell.nodes.engine.runner import Run, drive, run_nested, run_nested_durable, run_root
from stepwell.nodes.engine.runs import IfExists, NewRun, checked_retention, checked_storage
from stepwell.nodes.engine.wait_id import flow_of_wait
from stepwell.nodes.events import Subscriber, emitter
from stepwell.nodes.node import END, BaseNode, End, add_edge, check_edge

if TYPE_CHECKING:
    from stepwell.nodes.engine.journal import Retention
    from stepwell.nodes.engine.plan import Build, Strategy
    from stepwell.storage import Storage

__all__ = ["BaseFlow", "NodeFlow", "linear", "with_error_handling"]

OnUnknownAction = Literal["raise", "end", "default"]

#: A flow that was given no name.
_UNNAMED = "flow"


class BaseFlow(BaseNode):
    """What every kind of flow has: a graph of nodes, and the fact that it is a node itself."""

    #: How many nodes a run of it may visit.
    max_steps: int | None = None
    #: How many ``exec`` calls inside it may run at once.
    concurrency: int | None = None

    def _problems(self) -> list[str]:
        """What is wrong with the graph."""
        return []

    def _reachable(self) -> list[BaseNode]:
        """The nodes of the graph, the first one first, in the order in which they are walked."""
        raise NotImplementedError

    def _edges_of(self, node: BaseNode) -> Mapping[str, BaseNode | End]:
        return node.successors

    def _table(self, edges: dict[str, Stage | None]) -> dict[Any, Stage | None]:
        """Where each value leads that ``post`` may return; what is missing goes to :meth:`_leave`."""
        raise NotImplementedError

    def _leave(self, stage: Stage, result: Any, shared: Any) -> tuple[Any, Stage | None]:
        """The action and the next stage, for a returned value that is not in the table."""
        raise NotImplementedError

    def _strategy(self, build: Build, stage: Stage) -> Strategy | None:
        prefix = f"{stage.path}/" if stage.index else ""
        stage.leaf = False
        stage.graph = build.graph(self, stage.name, prefix)
        stage.bare = stage.prep is BaseNode.prep and stage.post is NodeFlow.post
        return run_nested

    def _program(self, *, by_hand: bool, durable: bool = False) -> Program:
        programs: dict[bool | str, Program] = self.__dict__.setdefault("_programs", {})
        kind = "durable" if durable else by_hand
        program = programs.get(kind)
        if program is None or not program.is_current():
            program = programs[kind] = compile_flow(self, by_hand=by_hand, durable=durable)
        return program


class NodeFlow(BaseFlow):
    """A graph of nodes that work on one shared state, walked from its start until an action leads nowhere.

    Put together by the builder (``add_node``, ``connect``, ``start``), which takes nodes and node classes,
    or by ``start=`` and the nodes' own edges (``a >> b``). The flow's own edges win. A flow is a node: it
    may have ``prep`` and ``post`` of its own, and inside another flow its last action chooses the edge.

    :param on_unknown_action: what happens when a node that has edges returns a named action without one:
        ``"raise"``, ``"end"`` the flow with a warning, or take the ``"default"`` edge.
    :param concurrency: how many ``exec`` calls inside may run at once, over all its batches and branches.
    :param max_steps: how many nodes a run may visit, those of flows inside among them, against endless loops.
    :param storage: where its runs are kept, unless they are given one of their own: a Storage, or a URL, whose storage
        the first run opens and ``flow.storage.close()`` closes.
    :param keep: whether runs stay in the storage when they have finished: ``True``, or for so many seconds.
    """

    _settings: ClassVar[tuple[str, ...]] = (
        *BaseNode._settings,
        *("on_unknown_action", "concurrency", "max_steps", "_revision"),
    )

    _shape: ClassVar[str] = "flow"

    def __init__(
        self,
        start: BaseNode | type[BaseNode] | None = None,
        *,
        name: str = _UNNAMED,
        storage: Storage | str | None = None,
        on_unknown_action: OnUnknownAction = "raise",
        concurrency: int | None = None,
        max_steps: int | None = None,
        keep: Retention = False,
    ) -> None:
        super().__init__(name=name)
        if on_unknown_action not in get_args(OnUnknownAction):
            raise InvalidOption(f"on_unknown_action={on_unknown_action!r}: choose one of 'raise', 'end' and 'default'")
        if concurrency is not None:
            check_concurrency(concurrency)
        if max_steps is not None and (not isinstance(max_steps, int) or max_steps < 1):
            raise InvalidOption(f"max_steps={max_steps!r}: give a whole number of at least 1, or None")
        self.on_unknown_action: OnUnknownAction = on_unknown_action
        self.concurrency = concurrency
        self.max_steps = max_steps
        self.storage = checked_storage(storage)
        self.keep = checked_retention(keep)
        self._start: BaseNode | None = None
        self._added: dict[int, BaseNode] = {}
        self._of_class: dict[type[BaseNode], BaseNode] = {}
        self._own_edges: dict[int, dict[str, BaseNode | End]] = {}
        self._revision = 0
        if start is not None:
            self.start(start)

    # Putting it together

    def add_node(self, node: BaseNode | type[BaseNode]) -> Self:
        """Add a node that must be reachable when the flow runs. A class stands for one instance of it."""
        self._node(node)
        return self

    def connect(
        self,
        source: BaseNode | type[BaseNode],
        target: BaseNode | type[BaseNode] | End,
        action: str = "default",
    ) -> Self:
        """Lead ``action`` of one node to another, in this flow only."""
        origin = self._node(source)
        goal = target if isinstance(target, End) else self._node(target)
        check_edge(origin, goal, action)
        add_edge(self._own_edges.setdefault(id(origin), {}), goal, action)
        self._revision += 1
        return self

    def start(self, node: BaseNode | type[BaseNode]) -> Self:
        """Say where runs begin."""
        self._start = self._node(node)
        self._revision += 1
        return self

    def post(self, shared: Any, prep_res: Any, exec_res: Any, /) -> Any:
        """Choose the edge of the flow around this one: by default by the last action inside."""
        return exec_res

    def diagram(self) -> str:
        """The graph as Mermaid text, for documents and for ``mermaid.live``."""
        return mermaid(self._program(by_hand=False).root)

    def _node(self, node: BaseNode | type[BaseNode]) -> BaseNode:
        if isinstance(node, type) and issubclass(node, BaseNode):
            if node not in self._of_class:
                self._of_class[node] = self._made(node)
            node = self._of_class[node]
        if not isinstance(node, BaseNode):
            raise InvalidGraph(self._title(), [f"{node!r} is no node; give a Node or a NodeFlow"])
        if not hasattr(node, "successors"):
            cls = type(node).__name__
            raise InvalidGraph(self._title(), [f"{cls}.__init__ does not call super().__init__()"])
        if id(node) not in self._added:
            self._added[id(node)] = node
            self._revision += 1
        return node

    def _made(self, cls: type[BaseNode]) -> BaseNode:
        try:
            return cls()
        except TypeError as error:
            problem = f"{cls.__name__} cannot be made without arguments ({error}); give an instance"
            raise InvalidGraph(self._title(), [problem]) from error

    def _title(self) -> str:
        return self.name or type(self).__name__

    def _given_name(self) -> str | None:
        return None if self.name == _UNNAMED else self.name

    def _kind(self) -> str:
        return type(self).__name__ if type(self) is not NodeFlow else _UNNAMED

    # What the compiler asks

    def _strategy(self, build: Build, stage: Stage) -> Strategy | None:
        strategy = super()._strategy(build, stage)
        if build.durable:
            stage.durable = run_nested_durable
            stage.keeps_prep = stage.prep is not BaseNode.prep
        return strategy

    def _reachable(self) -> list[BaseNode]:
        return reach(self._start, self._edges_of)

    def _edges_of(self, node: BaseNode) -> Mapping[str, BaseNode | End]:
        own = self._own_edges.get(id(node))
        return {**node.successors, **own} if own else node.successors

    def _problems(self) -> list[str]:
        if self._start is None:
            return ["it has no start: NodeFlow(start=node) or flow.start(node)"]
        nodes = self._reachable()
        reached = {id(node) for node in nodes}
        problems = [
            f"{node.name or type(node).__name__} is not reachable from the start: connect it, or leave it out"
            for key, node in self._added.items()
            if key not in reached
        ]
        problems.extend(
            f"the edge {action!r} of {node.name or type(node).__name__} leads to nothing: "
            f"write node - {action!r} >> target, or >> END"
            for node in nodes
            for action in sorted(node._dangling - self._edges_of(node).keys())
        )
        return problems

    def _table(self, edges: dict[str, Stage | None]) -> dict[Any, Stage | None]:
        default = edges.get("default")
        return {**edges, "default": default, "": default, None: default, END: None}

    def _leave(self, stage: Stage, result: Any, shared: Any) -> tuple[Any, Stage | None]:
        known = list(self._edges_of(stage.node))
        if result and isinstance(result, tuple) and (known or _is_pair(result)):
            result = self._take_updates(stage, result, shared)
        action = result or "default"
        if not isinstance(action, str | End):
            if known:
                raise InvalidAction(stage.path, type(action).__name__)
            return None, None
        if action in stage.edges:
            return action, stage.edges[action]
        if not known:
            return action, None
        if self.on_unknown_action == "default":
            return action, stage.edges["default"]
        if self.on_unknown_action == "end":
            warnings.warn(f"Flow ends: '{action}' not found in {known}", stacklevel=2)
            return action, None
        raise UnknownAction(stage.path, str(action), known)

    def _take_updates(self, stage: Stage, result: tuple[Any, ...], shared: Any) -> Any:
        """Put the updates of ``(action, updates)`` into the shared state, and return the action."""
        if not _is_pair(result):
            raise InvalidAction(stage.path, f"a tuple of {', '.join(type(part).__name__ for part in result)}")
        shared.update(result[1])
        return result[0]

    # Running it

    async def run(
        self,
        shared: dict[str, Any] | None = None,
        *,
        storage: Storage | str | None = None,
        flow_id: str | None = None,
        params: Mapping[str, Any] | None = None,
        if_exists: IfExists = "raise",
        keep: Retention | None = None,
        concurrency: int | None = None,
        on_event: Subscriber | None = None,
    ) -> dict[str, Any]:
        """Run the flow on a shared state, which is changed in place and returned.

        Cancelled, it cancels everything below it and waits until that has ended. With a storage the run is
        durable: each node is committed before the next one runs, and whatever ends the process,
        :meth:`resume` goes on after the last of them.

        :param storage: where the run is kept; without one, and without one of the flow's, it is not kept. One that is
            given as a URL is opened for this call and closed at its end.
        :param flow_id: the id of this run, for ``resume``, ``step()`` and events; without one it gets a new one.
        :param params: values for the nodes' ``params``; they win over those of flows and nodes.
        :param if_exists: what to do about a run of this id that exists: ``"raise"`` or ``"resume"`` it.
        :param keep: takes the place of the flow's own ``keep`` for this run.
        :param concurrency: takes the place of the flow's own bound for this run.
        :param on_event: is called with every :class:`Event` of this run.
        """
        shared = _checked_shared(shared)
        if storage is not None or self.storage is not None:
            async with runs.storage_for(self, storage) as found:
                return await runs.start(
                    self,
                    shared,
                    storage=found,
                    flow_id=flow_id,
                    params=params or {},
                    if_exists=if_exists,
                    keep=self.keep if keep is None else checked_retention(keep),
                    new_run=self._maker(concurrency, on_event),
                )
        runs.check_unkept(if_exists, keep)
        return await self._run_unkept(shared, flow_id, params, concurrency, on_event)

    async def _run_unkept(
        self,
        shared: dict[str, Any],
        flow_id: str | None = None,
        params: Mapping[str, Any] | None = None,
        concurrency: int | None = None,
        on_event: Subscriber | None = None,
    ) -> dict[str, Any]:
        program = self._program(by_hand=False)
        if program.want_storage is not None:
            raise UsageError(f"{program.want_storage}, so the run needs a storage: run(shared, storage=...)")
        run = self._new_run(program, by_hand=False, flow_id=flow_id, concurrency=concurrency, on_event=on_event)
        result = await run_root(program.root, run, shared, params or {})
        if isinstance(result, tuple):
            self._take_updates(program.root, result, shared)
        return shared

    def run_sync(
        self,
        shared: dict[str, Any] | None = None,
        *,
        storage: Storage | str | None = None,
        flow_id: str | None = None,
        params: Mapping[str, Any] | None = None,
        if_exists: IfExists = "raise",
        keep: Retention | None = None,
        concurrency: int | None = None,
        on_event: Subscriber | None = None,
    ) -> dict[str, Any]:
        """Run the flow without an event loop, with the arguments of :meth:`run`.

        A flow of ``def`` hooks runs in the caller's thread. One that needs a loop (``async def``, items or
        branches at once, executors, timeouts, a storage) runs on the library's background loop; inside a
        running loop that is an error.
        """
        shared = _checked_shared(shared)
        program = self._program(by_hand=True)
        if program.want_loop is None and storage is None and self.storage is None:
            runs.check_unkept(if_exists, keep)
            run = self._new_run(program, by_hand=True, flow_id=flow_id, concurrency=concurrency, on_event=on_event)
            result = drive(run_root(program.root, run, shared, params or {}))
            if isinstance(result, tuple):
                self._take_updates(program.root, result, shared)
            return shared
        if asyncio._get_running_loop() is not None:
            why = program.want_loop or "the run is kept in a storage"
            raise InsideLoop(f"{why}, so await {self._title()}.run(...)")
        return sync(
            self.run(
                shared,
                storage=storage,
                flow_id=flow_id,
                params=params,
                if_exists=if_exists,
                keep=keep,
                concurrency=concurrency,
                on_event=on_event,
            )
        )

    async def resume(
        self,
        flow_id: str,
        value: Any = ...,
        *,
        storage: Storage | str | None = None,
        concurrency: int | None = None,
        on_event: Subscriber | None = None,
    ) -> dict[str, Any]:
        """Go on with a run that was interrupted, has failed, or waits; the final state.

        ``flow_id`` is the run's id, or the id of one of its waits, which ``value`` then answers, once: if it was
        answered before, nothing is applied, and the run's present outcome is given. With the run's id,
        ``value`` answers the wait that the run is at, or takes the place of the answer that it failed on. A run
        whose runner has died is free when that one's claim has run out, which this waits for.
        """
        async with runs.storage_for(self, storage) as found:
            return await runs.resume(self, flow_id, value, storage=found, new_run=self._maker(concurrency, on_event))

    def resume_sync(
        self,
        flow_id: str,
        value: Any = ...,
        *,
        storage: Storage | str | None = None,
        concurrency: int | None = None,
        on_event: Subscriber | None = None,
    ) -> dict[str, Any]:
        """:meth:`resume` without an event loop, on the library's background loop."""
        return sync(self.resume(flow_id, value, storage=storage, concurrency=concurrency, on_event=on_event))

    async def status(self, flow_id: str, *, storage: Storage | str | None = None) -> monitor.Run:
        """How a run goes: read from its storage, so it may run anywhere. ``UnknownRun`` if there is none."""
        async with runs.storage_for(self, storage) as found:
            return await monitor.status(found, flow_of_wait(flow_id) or flow_id)

    async def runs(
        self, status: monitor.Status | None = None, *, storage: Storage | str | None = None
    ) -> AsyncIterator[monitor.Run]:
        """The runs of this flow that have not finished, or those of one status; ``async for``."""
        async with runs.storage_for(self, storage) as found:
            async for run in monitor.runs(found, self._title(), status):
                yield run

    def _maker(self, concurrency: int | None, on_event: Subscriber | None) -> NewRun:
        def new_run(program: Program, flow_id: str) -> Run:
            return self._new_run(program, by_hand=False, flow_id=flow_id, concurrency=concurrency, on_event=on_event)

        return new_run

    def _new_run(
        self,
        program: Program,
        *,
        by_hand: bool,
        flow_id: str | None,
        concurrency: int | None,
        on_event: Subscriber | None,
    ) -> Run:
        if concurrency is not None:
            check_concurrency(concurrency)
        if flow_id is not None and (not isinstance(flow_id, str) or not flow_id):
            raise InvalidOption(f"flow_id={flow_id!r}: give a non-empty string, or nothing for a new one")
        if flow_id is not None and flow_of_wait(flow_id) is not None:
            raise InvalidOption(f"flow_id={flow_id!r} is the id of a wait; give the run another one")
        title = self._title()
        emit = emitter(title, on_event)
        return Run(program, name=title, by_hand=by_hand, flow_id=flow_id, concurrency=concurrency, emit=emit)


def linear(*nodes: BaseNode | type[BaseNode], name: str = _UNNAMED, **options: Any) -> NodeFlow:
    """A flow of nodes one after the other; a class stands for a new node each time.

    Options are those of :class:`NodeFlow`.
    """
    flow = NodeFlow(name=name, **options)
    made = [flow._made(node) if isinstance(node, type) else node for node in nodes]
    if len({id(node) for node in made}) < len(made):
        problem = (
            "linear() is given a node twice, which would lead back to it for ever; give its class, or another node"
        )
        raise InvalidGraph(flow._title(), [problem])
    if made:
        flow.start(made[0])
    for source, target in pairwise(made):
        flow.connect(source, target)
    return flow


def with_error_handling(
    nodes: Iterable[BaseNode | type[BaseNode]],
    handler: BaseNode | type[BaseNode],
    *,
    name: str = _UNNAMED,
    **options: Any,
) -> NodeFlow:
    """A flow of nodes one after the other, in which the action ``"error"`` of each leads to ``handler``."""
    flow = linear(*nodes, name=name, **options)
    for node in flow._reachable():
        flow.connect(node, handler, action="error")
    return flow


def _checked_shared(shared: object) -> dict[str, Any]:
    if shared is None:
        return {}
    if not isinstance(shared, dict):
        raise UsageError(f"the shared state is a dict, not {type(shared).__name__}")
    return shared


def _is_pair(result: tuple[Any, ...]) -> bool:
    return len(result) == 2 and isinstance(result[1], Mapping)
