"""The base classes of nodes and flows: names, params, hooks and edges."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias, TypeVar

from stepwell._secrets import quoted
from stepwell.codec import check_name
from stepwell.errors import InvalidAction, InvalidGraph, InvalidOption
from stepwell.nodes.graph.hooks import Hooks

if TYPE_CHECKING:
    from stepwell.storage import Storage

__all__ = [
    "END",
    "Action",
    "BaseFlow",
    "BaseNode",
    "Edge",
    "End",
    "Exec",
    "PostResult",
    "Prep",
    "add_edge",
    "apply_updates",
    "check_edge",
    "is_pair",
]

Target = TypeVar("Target", bound="BaseNode | End")
if TYPE_CHECKING:
    # Defaults of type variables, so that plain ``Node`` is ``Node[Any, Any]``. Type checkers know typing_extensions
    # without an installation, and at run time the defaults are not needed.
    import typing_extensions

    Prep = typing_extensions.TypeVar("Prep", default=Any)
    Exec = typing_extensions.TypeVar("Exec", default=Any)
else:
    Prep, Exec = TypeVar("Prep"), TypeVar("Exec")


class End(Enum):
    """The type of :data:`END`."""

    END = "END"

    def __repr__(self) -> str:
        return "END"

    __str__ = __repr__


#: Ends the flow: return it from ``post``, or use it as the target of an edge.
END: Final = End.END

#: Chooses the edge; ``None`` is the action ``"default"``.
Action: TypeAlias = str | End | None
#: What ``post`` returns: an action, or an action and fields for the shared state; a ``def`` or an ``async def``.
PostResult: TypeAlias = Action | tuple[Action, Mapping[str, Any]] | Awaitable[Action | tuple[Action, Mapping[str, Any]]]


class BaseNode:
    """The base class of nodes and flows: a name, params, ``prep`` and ``post``, and edges.

    ``a >> b`` adds the edge for the action ``"default"``, ``a - "retry" >> b`` one for a named
    action. Such edges belong to the node and apply in every flow that reaches it.
    """

    #: The argument ``name``; without one, a flow derives a name from the class.
    name: str | None
    #: Read-only values for ``prep``, ``exec`` and ``post``. The params of a flow override those of its nodes.
    params: dict[str, Any]
    #: The target of each action.
    successors: dict[str, BaseNode | End]

    #: The attributes that a compiled flow depends on. If one changes, the flow is compiled again.
    _settings: ClassVar[tuple[str, ...]] = ("name", "successors", "_dangling", "prep", "post", "undo")
    _hooks: ClassVar[Hooks] = Hooks()
    #: Whether misspelt hooks are problems of the graph.
    _strict_hooks: ClassVar[bool] = True
    #: Whether a visit gets the node's own params too, or only those of the run and of the flows around it.
    _own_params: ClassVar[bool] = True
    #: Whether ``post`` of the outermost flow may return updates of the shared state.
    _returns_updates: ClassVar[bool] = True
    #: The kind of node; stored with a run to detect that the graph has changed.
    _shape: ClassVar[str] = "node"

    def __init__(self, *, name: str | None = None) -> None:
        if name is not None and (not isinstance(name, str) or not name or "/" in name or name.isdigit()):
            raise InvalidOption(f"name={quoted(name)}: give a non-empty text that is not a number and has no '/'")
        check_name("the name", name)
        self.name = name
        self.params = {}
        self.successors = {}
        self._dangling: set[str] = set()

    def prep(self, shared: Any, /) -> Any:
        """Read the shared state and return what ``exec`` needs."""

    def post(self, shared: Any, prep_res: Any, exec_res: Any, /) -> PostResult:
        """Write to the shared state and return the action, or ``(action, updates)``."""

    def undo(self, shared: Any, result: Any, /) -> Any:
        """Undo what ``exec`` did; ``result`` is what it returned. By default there is nothing to undo.

        If a later node fails for good, or the run is cancelled, the nodes that have completed are undone, the last one
        first, each with the attempts of its ``exec``. It is a ``def`` or an ``async def``::

            class Charge(Node):
                async def exec(self, amount):
                    return await pay(amount, key=step().id)

                async def undo(self, shared, payment):
                    await refund(payment, key=f"{step().id}/undo")
        """

    def next(self, node: Target, action: str = "default") -> Target:
        """Lead ``action`` to ``node``, and return ``node``."""
        check_edge(self, node, action)
        add_edge(self.successors, node, action)
        self._dangling.discard(action)
        return node

    def __rshift__(self, node: Target) -> Target:
        return self.next(node)

    def __sub__(self, action: str) -> Edge:
        if not isinstance(action, str) or not action:
            raise TypeError(f"an action is a non-empty string, not {quoted(action)}")
        # The validation of the flow reports an edge without a target.
        if action not in self.successors:
            self._dangling.add(action)
        return Edge(self, action)

    def _strategy(self, build: Any, stage: Any) -> Any:
        """Complete the stage, and return the function that runs ``exec``; ``None`` calls ``exec`` directly.

        ``build`` is the ``Build`` and ``stage`` a ``Stage`` of ``plan.py``, which imports this module.
        """
        raise NotImplementedError

    def _own_actions(self) -> tuple[str, ...]:
        """Return the actions that the node takes by itself, without ``post``. Each needs an edge."""
        return ()

    def _given_name(self) -> str | None:
        """Return the name that the user chose."""
        return self.name

    def _kind(self) -> str:
        """Return the name to use if the user chose none."""
        return type(self).__name__


class BaseFlow(BaseNode):
    """The base class of flows. A flow is a graph of nodes, and a node itself."""

    #: How many nodes one run may visit.
    max_steps: int | None = None
    #: How many ``exec`` calls inside it may run at once.
    concurrency: int | None = None
    #: The storage of its runs.
    storage: Storage | None = None
    #: The URL that the storage was given as.
    _storage_url: str | None = None
    #: Whether finished runs stay in the storage.
    keep: bool | float = False
    #: How often the runner of a run may die at one node.
    max_recoveries: int = 5
    #: The revision of the flow.
    revision: int = 1
    #: Moves a run of an earlier revision to this one.
    migrate: Callable[[Any], None] | None = None
    #: The new path of each path that was renamed.
    renamed: Mapping[str, str] = MappingProxyType({})
    #: What the history of its runs has.
    _detail: Literal["nodes", "values"] | None = "nodes"
    #: Whether the edge ``"error"`` of a node catches the errors of that node.
    _catches: ClassVar[bool] = False
    #: When the flow was made, as a time of ``monotonic()``.
    _built_at: float = inf

    def post(self, shared: Any, prep_res: Any, exec_res: Any, /) -> PostResult:
        """Choose the edge of the enclosing flow; by default the last action inside."""
        return exec_res  # type: ignore[no-any-return]

    def _title(self) -> str:
        return self.name or type(self).__name__

    def _problems(self) -> list[str]:
        """Return what is wrong with the graph."""
        return []

    def _reachable(self) -> list[BaseNode]:
        """Return the nodes of the graph, breadth first from the start."""
        raise NotImplementedError

    def _edges_of(self, node: BaseNode) -> Mapping[str, BaseNode | End]:
        return node.successors

    def _table(self, edges: dict[str, Any]) -> dict[Any, Any]:
        """Return the next stage for each value that ``post`` may return; :meth:`_leave` handles all others."""
        raise NotImplementedError

    def _leave(self, stage: Any, result: Any, shared: Any) -> tuple[Any, Any]:
        """Return the action and the next stage for a value that is not in the table."""
        raise NotImplementedError

    def _strategy(self, build: Any, stage: Any) -> Any:
        build.nest(self, stage)
        return None


class Edge:
    """``node - "action"``: an edge that still needs ``>> target``."""

    def __init__(self, source: BaseNode, action: str) -> None:
        self._source = source
        self._action = action

    def __rshift__(self, node: Target) -> Target:
        return self._source.next(node, self._action)


def check_edge(source: BaseNode, target: object, action: object) -> None:
    """Raise ``TypeError`` or ``InvalidGraph`` unless this can be an edge."""
    if not isinstance(action, str) or not action:
        raise TypeError(f"an action is a non-empty string, not {quoted(action)}")
    if not isinstance(target, BaseNode | End):
        raise InvalidGraph(
            type(source).__name__,
            [f"the edge {quoted(action)} leads to {quoted(target)}, which is not a node; give a node, a flow or END"],
        )


def add_edge(edges: dict[str, BaseNode | End], target: BaseNode | End, action: str) -> None:
    """Add an edge, and warn if it replaces another one."""
    if edges.get(action, target) is not target:
        warnings.warn(f"Overwriting successor for action '{action}'", stacklevel=4)
    edges[action] = target


def apply_updates(path: str, result: tuple[Any, ...], shared: Any) -> Any:
    """Apply the updates of ``(action, updates)`` of a node to the shared state, and return the action."""
    if not is_pair(result):
        raise InvalidAction(path, f"a tuple of {', '.join(type(part).__name__ for part in result)}")
    shared.update(result[1])
    return result[0]


def is_pair(result: tuple[Any, ...]) -> bool:
    """Return whether a result of ``post`` is ``(action, updates)``."""
    return len(result) == 2 and isinstance(result[1], Mapping)
