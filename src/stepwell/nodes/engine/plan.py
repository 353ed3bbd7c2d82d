"""The compiler: turns a flow into stages, so that a visit decides nothing that is known before."""

from __future__ import annotations

import copy
import copyreg
import inspect
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from operator import attrgetter
from types import FunctionType
from typing import TYPE_CHECKING, Any

from stepwell.errors import InvalidGraph, UsageError
from stepwell.nodes.engine.attempts import ExecPolicy
from stepwell.nodes.engine.base import END, BaseNode, End

if TYPE_CHECKING:
    from stepwell.nodes.engine.base_flow import BaseFlow
    from stepwell.nodes.engine.position import Cursor
    from stepwell.nodes.engine.shape import FlowGraph, Shape

__all__ = [
    "Build",
    "DurableStrategy",
    "Graph",
    "Program",
    "Stage",
    "Strategy",
    "compile_flow",
    "hook_of",
    "name_nodes",
    "reach",
]

#: (stage, cursor, the visit's node, what prep returned, the shared state) -> what post is given.
Strategy = Callable[["Stage", "Cursor", Any, Any, Any], Awaitable[Any]]

#: (stage, cursor, the visit's node, the shared state, whether the run was left inside it) -> (prep_res, exec_res).
DurableStrategy = Callable[["Stage", Any, Any, Any, bool], Awaitable[tuple[Any, Any]]]

_ONE_ATTEMPT = ExecPolicy(1, 0, 1, 0, Exception, None, inline=False)


class Stage:
    """One node at its place in a graph."""

    __slots__ = (
        *("bare", "cls", "copier", "edges", "execute", "exec", "fallback", "limits", "graph", "has_fallback", "index"),
        *(
            "leaf",
            "name",
            "node",
            "own_params",
            "path",
            "policy",
            "post",
            "prep",
            "seen",
            "settings",
            "threaded",
        ),
        *("durable", "extra", "items", "keeps_prep", "key"),
    )

    def __init__(self, node: BaseNode, name: str, path: str, index: int) -> None:
        self.node = node
        self.cls = type(node)
        self.name = name
        #: The name with the names of the flows around it: unique in the program.
        self.path = path
        #: The index among all stages of the program.
        self.index = index
        #: Where each action that ``post`` may return leads; ``None`` ends the flow.
        self.edges: dict[Any, Stage | None] = {}
        #: The graph inside, of a nested flow.
        self.graph: Graph | None = None
        #: A flow without hooks of its own: nothing but its graph.
        self.bare = False
        #: Errors are traced to leaves: nodes that hold no other nodes.
        self.leaf = True
        #: The graphs around this stage, innermost first: each may limit its concurrency.
        self.limits: tuple[Graph, ...] = ()
        self.policy = _ONE_ATTEMPT
        self.has_fallback = False
        self.threaded = False
        #: What a strategy keeps for itself: settings of a batch, branches of a join.
        self.extra: Any = None
        #: Of a batch: makes the items from what ``prep`` returned.
        self.items: Callable[[Stage, Any], Iterable[Any] | AsyncIterable[Any]]
        self.own_params = node._own_params
        # Instances whose class takes part in copying are copied by their own rules.
        self.copier: Callable[[Any], Any] | None = None if _plainly_copied(self.cls) else copy.copy
        hooks = node._hooks
        self.prep = hook_of(node, hooks.prep)
        self.exec = hook_of(node, hooks.exec)
        self.post = hook_of(node, hooks.post)
        self.fallback = hook_of(node, hooks.fallback)
        self.settings = attrgetter(*node._settings)
        self.seen = _snapshot(self.settings(node))
        self.execute: Strategy | None = None
        #: In a durable run: how a node that holds others, or works bit by bit, gets from its visit to its ``post``.
        self.durable: DurableStrategy | None = None
        #: What the journal of a durable run calls it.
        self.key = path if index else ""
        #: Whether what ``prep`` returned must survive a crash in the middle of the node.
        self.keeps_prep = False

    def is_async(self, hook: str) -> bool:
        """Whether the hook is an ``async def``, so that calling it blocks nobody."""
        function = getattr(self, hook)
        return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


class Graph:
    """The stages of one flow."""

    __slots__ = ("flow", "limit", "max_steps", "name", "stages", "start")

    def __init__(self, flow: BaseFlow, name: str) -> None:
        self.flow = flow
        self.name = name
        self.start: Stage | None = None
        self.stages: list[Stage] = []
        self.max_steps = flow.max_steps
        #: How many ``exec`` calls inside may run at once.
        self.limit = flow.concurrency


class Program:
    """A whole flow, with the flows inside it, ready to run any number of times."""

    __slots__ = ("_checks", "digest", "graph", "root", "shape", "stages", "want_loop", "want_storage")

    def __init__(self, root: Stage, build: Build) -> None:
        self.root = root
        self.stages = build.stages
        self._checks = [(stage.settings, stage.node, stage.seen) for stage in build.stages]
        #: Why the flow needs an event loop, if it does.
        self.want_loop = build.wants[0] if build.wants else None
        #: Why the flow needs a storage, if it does.
        self.want_storage = build.waits[0] if build.waits else None
        #: Of a durable program: its shape, once somebody has asked.
        self.shape: Shape | None = None
        self.digest: str | None = None
        #: The graph as subscribers see it, made for the first of them.
        self.graph: FlowGraph | None = None

    def is_current(self) -> bool:
        """Whether no node or flow has been changed since this was compiled."""
        for settings, node, seen in self._checks:  # noqa: SIM110 - once a run, and twice as quick as all()
            if settings(node) != seen:
                return False
        return True


class Build:
    """The state of one compilation."""

    def __init__(self, *, without_loop: bool, durable: bool = False) -> None:
        #: For runs without an event loop.
        self.without_loop = without_loop
        #: For runs that are kept in a storage.
        self.durable = durable
        #: Whether branches run side by side here, so that every ``exec`` needs the limiter.
        self.concurrent = False
        self.stages: list[Stage] = []
        self.wants: list[str] = []
        self.waits: list[str] = []
        self.problems: list[str] = []
        self._around: list[Graph] = []

    def want_loop(self, why: str) -> None:
        self.wants.append(why)

    def want_storage(self, why: str) -> None:
        self.waits.append(why)
        # A storage lives on a loop.
        self.want_loop(why)

    def problem(self, text: str) -> None:
        self.problems.append(text)

    def stage(self, node: BaseNode, name: str, prefix: str) -> Stage:
        """Compile one node and what is inside it, without its edges."""
        stage = Stage(node, name, f"{prefix}{name}", len(self.stages))
        self.stages.append(stage)
        stage.limits = tuple(reversed(self._around))
        for hook in ("prep", "post", "exec", "fallback"):
            if stage.is_async(hook):
                self.want_loop(f"{stage.path}.{getattr(node._hooks, hook)} is async")
        stage.execute = node._strategy(self, stage)
        return stage

    def graph(self, flow: BaseFlow, name: str, prefix: str) -> Graph:
        """Compile the graph of a flow: its nodes in the order in which they are reached, then their edges."""
        if any(graph.flow is flow for graph in self._around):
            raise InvalidGraph(name, ["it contains itself"])
        graph = Graph(flow, name)
        self._around.append(graph)
        problems = flow._problems()
        nodes = flow._reachable()
        names = name_nodes(nodes, problems)
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


def compile_flow(node: BaseNode, *, without_loop: bool, durable: bool = False) -> Program:
    """Compile a flow or a single node, for a loop or for runs without one; raise ``InvalidGraph`` if it cannot run."""
    build = Build(without_loop=without_loop, durable=durable)
    name = node.name or type(node).__name__
    root = build.stage(node, name, "")
    if build.problems:
        raise InvalidGraph(name, build.problems)
    return Program(root, build)


def reach(start: BaseNode | None, edges_of: Callable[[BaseNode], Mapping[str, BaseNode | End]]) -> list[BaseNode]:
    """The nodes that can be reached, breadth first, each node's edges in the order they were made."""
    nodes = [] if start is None else [start]
    known = {id(node) for node in nodes}
    for node in nodes:
        for target in edges_of(node).values():
            if isinstance(target, BaseNode) and id(target) not in known:
                known.add(id(target))
                nodes.append(target)
    return nodes


def name_nodes(nodes: list[BaseNode], problems: list[str]) -> dict[int, str]:
    """A name for each node, by its id: the given one, else its class's, numbered from the second on."""
    names: dict[int, str] = {}
    taken: set[str] = set()
    for node in nodes:
        given = node._given_name()
        if given is not None:
            if given in taken:
                problems.append(f"two nodes are given the name {given!r}")
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
    """Whether ``copy.copy`` of an instance does no more than copy its ``__dict__``."""
    own = ("__copy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__new__")
    return (
        all(getattr(cls, name, None) is getattr(object, name, None) for name in own)
        and not hasattr(cls, "__getnewargs__")
        and not hasattr(cls, "__getnewargs_ex__")
        and cls not in copyreg.dispatch_table
        and not any("__slots__" in vars(base) for base in cls.__mro__)
    )


def hook_of(node: BaseNode, name: str) -> Callable[..., Any]:
    """The hook as a function of the node: found once, so that a visit need not look it up."""
    found = inspect.getattr_static(type(node), name, None)
    if isinstance(found, FunctionType) and name not in vars(node):
        return found
    bound = getattr(node, name, None)
    if bound is None:
        return _missing(name)
    if inspect.iscoroutinefunction(bound) or inspect.isasyncgenfunction(bound):

        async def call_async(node: BaseNode, *args: Any) -> Any:
            result = getattr(node, name)(*args)
            return result if inspect.isasyncgen(result) else await result

        return call_async

    def call(node: BaseNode, *args: Any) -> Any:
        return getattr(node, name)(*args)

    return call


def _missing(name: str) -> Callable[..., Any]:
    def call(node: BaseNode, *args: Any) -> Any:
        raise UsageError(f"{type(node).__name__} has no {name}")

    return call
