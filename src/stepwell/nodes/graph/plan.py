"""The compiler: turns a flow into stages before its first run, so that a visit has little to decide."""

from __future__ import annotations

import copy
import copyreg
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any

from stepwell._secrets import quoted
from stepwell.codec import check_name
from stepwell.errors import InvalidGraph, UsageError
from stepwell.nodes.graph.base import END, BaseFlow, BaseNode, End
from stepwell.nodes.graph.hook_check import problems_of_hooks
from stepwell.nodes.graph.hooks import Hook, hook_of, is_async
from stepwell.nodes.graph.policy import ExecPolicy
from stepwell.nodes.graph.shape import FlowEdge, FlowGraph, Shape, digest

__all__ = ["Build", "DurableStrategy", "Graph", "Program", "Stage", "Strategy", "graph_of", "program_of", "reach"]

#: (stage, cursor, copy of the node, prep_res, shared state) -> exec_res. The cursor is the position of the run.
Strategy = Callable[["Stage", Any, Any, Any, Any], Awaitable[Any]]

#: (stage, cursor, copy of the node, shared state, whether the run was interrupted inside) -> (prep_res, exec_res).
DurableStrategy = Callable[["Stage", Any, Any, Any, bool], Awaitable[tuple[Any, Any]]]

_ONE_ATTEMPT = ExecPolicy()


class Stage:
    """One node of a graph, compiled."""

    def __init__(self, node: BaseNode, name: str, path: str, index: int) -> None:
        self.node = node
        self.cls: type[BaseNode] = type(node)
        self.name = name
        #: The name with the names of the flows around it; unique in the program.
        self.path = path
        #: The index among all stages of the program.
        self.index = index
        #: The next stage for each action that ``post`` may return; ``None`` ends the flow.
        self.edges: dict[Any, Stage | None] = {}
        #: The graph of a nested flow.
        self.graph: Graph | None = None
        #: A flow without hooks of its own.
        self.bare = False
        #: A node without nodes inside. Only leaves add a note to their errors.
        self.leaf = True
        #: The graphs around this stage, innermost first. Each may limit its concurrency.
        self.limits: tuple[Graph, ...] = ()
        self.policy = _ONE_ATTEMPT
        self.has_fallback = False
        self.threaded = False
        #: Data of the strategy: the settings of a batch, the branches of a parallel node.
        self.extra: Any = None
        #: Of a batch: makes the items from the result of ``prep``.
        self.items: Callable[[Stage, Any], Iterable[Any] | AsyncIterable[Any]]
        self.own_params: bool = node._own_params
        # A class may define how its instances are copied.
        self.copier: Callable[[Any], Any] | None = None if _plainly_copied(self.cls) else copy.copy
        hooks = node._hooks
        self.prep: Hook = hook_of(node, hooks.prep)
        self.exec: Hook = hook_of(node, hooks.exec)
        self.post: Hook = hook_of(node, hooks.post)
        self.fallback: Hook = hook_of(node, hooks.fallback)
        undo = hook_of(node, "undo") if node._strict_hooks else BaseNode.undo
        #: Undoes a visit; ``None`` if there is nothing to undo.
        self.undo: Hook | None = None if undo is BaseNode.undo else undo
        self.settings: Callable[[BaseNode], Any] = attrgetter(*node._settings)
        self.seen: tuple[Any, ...] = _snapshot(self.settings(node))
        self.execute: Strategy | None = None
        #: In a durable run: runs a node that commits before it completes (parallel, batch, wait, children).
        self.durable: DurableStrategy | None = None
        #: Whether a durable run commits inside it, before it completes.
        self.commits_inside = False
        #: The path in the journal of a durable run.
        self.key: str = path if index else ""
        #: Whether a durable run stores the result of ``prep``.
        self.keeps_prep = False

    @property
    def inside(self) -> list[Graph]:
        """The graphs inside: one of a nested flow, one for each branch of a parallel node."""
        return [self.graph] if self.graph is not None else [] if self.leaf else self.extra


@dataclass(slots=True, eq=False)
class Graph:
    """The stages of one flow."""

    flow: BaseFlow
    name: str
    start: Stage | None = None
    stages: list[Stage] = field(default_factory=list)


class Program:
    """A compiled flow with all flows inside it."""

    def __init__(self, root: Stage, build: Build) -> None:
        self.root: Stage = root
        self.stages: list[Stage] = build.stages
        self._checks = [(stage.settings, stage.node, stage.seen) for stage in build.stages]
        #: Why the flow needs an event loop, if it does.
        self.want_loop: str | None = next(iter(build.want_loop_for), None)
        #: Why the flow needs a storage, if it does.
        self.want_storage: str | None = next(iter(build.want_storage_for), None)

    def is_current(self) -> bool:
        """Return whether no node or flow has changed since it was compiled."""
        for settings, node, seen in self._checks:  # noqa: SIM110 - once a run, and twice as fast as all()
            if settings(node) != seen:
                return False
        return True

    @cached_property
    def graph(self) -> FlowGraph:
        """The graph of the flow, for subscribers."""
        graph = self.root.graph
        stages = graph.stages if graph is not None else [self.root]
        edges: list[FlowEdge] = []
        for stage in stages:
            for action in graph.flow._edges_of(stage.node) if graph is not None else ():
                following = stage.edges[action]
                edges.append(FlowEdge(stage.path, action, None if following is None else following.path))
        return FlowGraph(nodes=tuple([stage.path for stage in stages]), edges=tuple(edges))

    @cached_property
    def shape(self) -> Shape:
        """The nodes and edges in the order of the stages, to compare with those of a stored run."""
        shape: Shape = {}
        for stage in self.stages:
            edges = {
                action: None if target is None else target.path
                for action, target in stage.edges.items()
                if isinstance(action, str) and action
            }
            for number, graph in enumerate(stage.inside):
                assert graph.start is not None
                edges[f"start {number}"] = graph.start.path
            # The name of the outermost flow is stored beside the shape.
            shape[stage.key] = [stage.node._shape, edges]
        return shape

    @cached_property
    def digest(self) -> str:
        """A hash of the shape."""
        return digest(self.shape)


class Build:
    """The state of one compilation."""

    def __init__(self, *, without_loop: bool, durable: bool = False) -> None:
        #: For runs without an event loop.
        self.without_loop = without_loop
        #: For runs that are kept in a storage.
        self.durable = durable
        #: Inside parallel branches, where every ``exec`` needs the limiter.
        self.concurrent = False
        self.stages: list[Stage] = []
        self.want_loop_for: list[str] = []
        self.want_storage_for: list[str] = []
        self.problems: list[str] = []
        #: The graphs around the current node, outermost first.
        self._around: list[Graph] = []

    def stage(self, node: BaseNode, name: str, prefix: str) -> Stage:
        """Compile one node and what is inside it, without its edges."""
        stage = Stage(node, name, f"{prefix}{name}", len(self.stages))
        self.stages.append(stage)
        stage.limits = tuple(reversed(self._around))
        for hook in ("prep", "post", "exec", "fallback"):
            if is_async(getattr(stage, hook)):
                self.want_loop_for.append(f"{stage.path}.{getattr(node._hooks, hook)} is async")
        if is_async(stage.undo):
            self.want_loop_for.append(f"{stage.path}.undo is async")
        if node._strict_hooks:
            self.problems.extend(problems_of_hooks(node, stage.path))
        stage.execute = node._strategy(self, stage)
        if stage.undo is not None and not stage.leaf:
            self.problems.append(f"{stage.path} has nodes inside, so its undo() never runs; give undo() to these nodes")
        stage.commits_inside = stage.durable is not None or stage.graph is not None
        return stage

    def need_storage(self, stage: Stage, why: str) -> Strategy:
        """Note that a stage needs a durable run, and return what runs it in another one."""
        self.want_storage_for.append(f"{stage.path} {why}")
        # Storages need a loop.
        self.want_loop_for.append(f"{stage.path} {why}")

        async def refuse(*run: Any) -> Any:
            raise UsageError(f"{stage.path} {why}, so its run needs a storage: run(shared, storage=...)")

        return refuse

    def nest(self, flow: BaseFlow, stage: Stage) -> None:
        """Complete the stage of a flow: compile the nodes inside."""
        stage.leaf = False
        stage.graph = self.graph(flow, stage.name, f"{stage.path}/" if stage.index else "")
        stage.bare = stage.prep is BaseNode.prep and stage.post is BaseFlow.post
        stage.keeps_prep = self.durable and stage.prep is not BaseNode.prep

    def graph(self, flow: BaseFlow, name: str, prefix: str) -> Graph:
        """Compile the nodes of a flow, breadth first, then their edges."""
        if any(graph.flow is flow for graph in self._around):
            raise InvalidGraph(name, ["it contains itself"])
        graph = Graph(flow, name)
        self._around.append(graph)
        problems = flow._problems()
        nodes = flow._reachable()
        names = _name_nodes(nodes, problems)
        by_node = {id(node): self.stage(node, names[id(node)], prefix) for node in nodes}
        graph.stages = list(by_node.values())
        for node in nodes:
            stage = by_node[id(node)]
            targets = flow._edges_of(node)
            edges = {action: None if target is END else by_node[id(target)] for action, target in targets.items()}
            stage.edges = flow._table(edges)
        graph.start = graph.stages[0] if graph.stages else None
        self.problems.extend(problems if not prefix else [f"in {prefix[:-1]}: {problem}" for problem in problems])
        self._around.pop()
        return graph


def _compile_flow(node: BaseNode, *, without_loop: bool, durable: bool = False) -> Program:
    """Compile a flow or a single node; raise ``InvalidGraph`` if it cannot run."""
    build = Build(without_loop=without_loop, durable=durable)
    name = node.name or type(node).__name__
    check_name("the name", name)
    root = build.stage(node, name, "")
    if build.problems:
        raise InvalidGraph(name, build.problems)
    return Program(root, build)


def program_of(node: BaseNode, *, without_loop: bool, durable: bool = False) -> Program:
    """Return the compiled program of a flow or a single node; compile it again if a node or flow has changed."""
    programs: dict[bool | str, Program] = node.__dict__.setdefault("_programs", {})
    kind = "durable" if durable else without_loop
    program = programs.get(kind)
    if program is None or not program.is_current():
        program = programs[kind] = _compile_flow(node, without_loop=without_loop, durable=durable)
    return program


def graph_of(program: Program) -> FlowGraph:
    """Return the graph of a compiled flow, for those who show it."""
    return program.graph


def reach(start: BaseNode | None, edges_of: Callable[[BaseNode], Mapping[str, BaseNode | End]]) -> list[BaseNode]:
    """Return the nodes that can be reached from a start, breadth first, in the order of their edges."""
    nodes = [] if start is None else [start]
    known = {id(node) for node in nodes}
    for node in nodes:
        for target in edges_of(node).values():
            if isinstance(target, BaseNode) and id(target) not in known:
                known.add(id(target))
                nodes.append(target)
    return nodes


def _name_nodes(nodes: list[BaseNode], problems: list[str]) -> dict[int, str]:
    """Return a name for each node, by ``id()``: the given one, else that of its class, numbered from the second on."""
    names: dict[int, str] = {}
    taken: set[str] = set()
    for node in nodes:
        given = node._given_name()
        if given is not None:
            if given in taken:
                problems.append(f"two nodes have the name {quoted(given)}")
            # A name may be assigned to a node after it was made.
            check_name("the name", given)
            taken.add(given)
            names[id(node)] = given
    counts: dict[str, int] = {}
    for node in nodes:
        if id(node) in names:
            continue
        name = kind = node._kind()
        count = counts.get(kind, 1)
        while name in taken:
            count += 1
            name = f"{kind}-{count}"
        counts[kind] = count
        taken.add(name)
        names[id(node)] = name
    return names


def _snapshot(values: Any) -> tuple[Any, ...]:
    return tuple(value.copy() if type(value) in (dict, set, list) else value for value in values)


def _plainly_copied(cls: type) -> bool:
    """Return whether ``copy.copy`` of an instance only copies its ``__dict__``."""
    own = ("__copy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__new__")
    return (
        all(getattr(cls, name, None) is getattr(object, name, None) for name in own)
        and not hasattr(cls, "__getnewargs__")
        and not hasattr(cls, "__getnewargs_ex__")
        and cls not in copyreg.dispatch_table
        and not any(vars(base).get("__slots__") for base in cls.__mro__)
    )
