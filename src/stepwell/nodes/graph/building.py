"""The graph of a :class:`NodeFlow`: building and validating it, and choosing the edge of an action."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self, get_args

from stepwell._secrets import quoted
from stepwell.errors import InvalidAction, InvalidGraph, UnknownAction
from stepwell.nodes.graph.base import END, BaseFlow, BaseNode, End, add_edge, apply_updates, check_edge, is_pair
from stepwell.nodes.graph.diagram import mermaid
from stepwell.nodes.graph.plan import Stage, program_of, reach
from stepwell.options import check_choice

__all__ = ["UNNAMED", "NodeGraph", "OnUnknownAction"]

OnUnknownAction = Literal["raise", "end", "default"]

#: The name of a flow without a given name.
UNNAMED = "flow"


class NodeGraph(BaseFlow):
    """A graph of nodes, with edges of its own and the edges of its nodes."""

    _settings: ClassVar[tuple[str, ...]] = (
        *BaseNode._settings,
        *("on_unknown_action", "concurrency", "max_steps", "_revision"),
    )

    _shape: ClassVar[str] = "flow"
    _catches: ClassVar[bool] = True

    def __init__(self, name: str | None, on_unknown_action: OnUnknownAction) -> None:
        super().__init__(name=name)
        check_choice(
            on_unknown_action,
            get_args(OnUnknownAction),
            "on_unknown_action={}: choose one of 'raise', 'end' and 'default'",
        )
        self.on_unknown_action: OnUnknownAction = on_unknown_action
        self._start: BaseNode | None = None
        self._added: dict[int, BaseNode] = {}
        self._of_class: dict[type[BaseNode], BaseNode] = {}
        self._own_edges: dict[int, dict[str, BaseNode | End]] = {}
        self._revision = 0

    def add_node(self, node: BaseNode | type[BaseNode]) -> Self:
        """Add a node, which must be reachable when the flow runs. A class is the same node in all calls."""
        self._node(node)
        return self

    def connect(
        self,
        source: BaseNode | type[BaseNode],
        target: BaseNode | type[BaseNode] | End,
        action: str = "default",
    ) -> Self:
        """Add an edge from a node to another for ``action``, in this flow only."""
        origin = self._node(source)
        goal = target if isinstance(target, End) else self._node(target)
        check_edge(origin, goal, action)
        add_edge(self._own_edges.setdefault(id(origin), {}), goal, action)
        self._revision += 1
        return self

    def start(self, node: BaseNode | type[BaseNode]) -> Self:
        """Set the first node."""
        self._start = self._node(node)
        self._revision += 1
        return self

    def diagram(self) -> str:
        """Return the graph as Mermaid text, for documents and for ``mermaid.live``."""
        return mermaid(program_of(self, without_loop=False).root)

    def _node(self, node: BaseNode | type[BaseNode]) -> BaseNode:
        if isinstance(node, type) and issubclass(node, BaseNode):
            if node not in self._of_class:
                self._of_class[node] = self._made(node)
            node = self._of_class[node]
        if not isinstance(node, BaseNode):
            raise InvalidGraph(self._title(), [f"{quoted(node)} is not a node; give a Node or a NodeFlow"])
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
            problem = f"{cls.__name__}() raised TypeError ({error}); give an instance"
            raise InvalidGraph(self._title(), [problem]) from error

    def _given_name(self) -> str | None:
        return None if self.name == UNNAMED else self.name

    def _reachable(self) -> list[BaseNode]:
        return reach(self._start, self._edges_of)

    def _edges_of(self, node: BaseNode) -> Mapping[str, BaseNode | End]:
        own = self._own_edges.get(id(node))
        return {**node.successors, **own} if own else node.successors

    def _problems(self) -> list[str]:
        if self._start is None:
            return ["it has no start; give NodeFlow(start=node), or call flow.start(node)"]
        nodes = self._reachable()
        reached = {id(node) for node in nodes}
        problems = [
            f"{node.name or type(node).__name__} is not reachable from the start: connect it, or remove it"
            for key, node in self._added.items()
            if key not in reached
        ]
        problems.extend(
            f"the edge {quoted(action)} of {node.name or type(node).__name__} has no target: "
            f"write node - {quoted(action)} >> target, or >> END"
            for node in nodes
            for action in sorted(node._dangling - self._edges_of(node).keys())
        )
        if self.on_unknown_action == "raise":
            problems.extend(
                f"{node.name} has the action {quoted(action)} and no edge for it: connect({node.name}, target, "
                f"{quoted(action)}), or END as the target"
                for node in nodes
                for action in node._own_actions()
                if (edges := self._edges_of(node)) and action not in edges
            )
        return problems

    def _table(self, edges: dict[str, Stage | None]) -> dict[Any, Stage | None]:
        default = edges.get("default")
        return {**edges, "default": default, "": default, None: default, END: None}

    def _leave(self, stage: Stage, result: Any, shared: Any) -> tuple[Any, Stage | None]:
        known = list(self._edges_of(stage.node))
        if result and isinstance(result, tuple) and (known or is_pair(result)):
            result = apply_updates(stage.path, result, shared)
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
