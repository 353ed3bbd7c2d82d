"""The base of nodes and flows: names, params, hooks and edges."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar

from stepwell.errors import InvalidGraph, InvalidOption

if TYPE_CHECKING:
    from stepwell.nodes.engine.plan import Build, Stage, Strategy

__all__ = ["END", "BaseNode", "Edge", "End", "Hooks", "add_edge", "check_edge"]

Target = TypeVar("Target", bound="BaseNode | End")


class End:
    """The type of :data:`END`."""

    _only: ClassVar[End | None] = None

    def __new__(cls) -> End:
        if cls._only is None:
            cls._only = super().__new__(cls)
        return cls._only

    def __repr__(self) -> str:
        return "END"

    def __reduce__(self) -> str:
        return "END"


#: Ends the flow: as what ``post`` returns, or as the target of an edge.
END: Final = End()


class Hooks(NamedTuple):
    """The names of the methods that the runner calls on a class of nodes."""

    prep: str = "prep"
    exec: str = "exec"
    post: str = "post"
    fallback: str = "exec_fallback"


class BaseNode:
    """What nodes and flows have in common: a name, params, ``prep`` and ``post``, and edges.

    ``a >> b`` adds the edge for the action ``"default"``, ``a - "retry" >> b`` one for a named
    action. Such edges belong to the node and count in every flow that reaches it.
    """

    #: The name given by ``name=``; without one, flows make one from the class's name.
    name: str | None
    #: Read-only values for ``prep``, ``exec`` and ``post``. A flow's params win over its nodes'.
    params: dict[str, Any]
    #: Where each action leads.
    successors: dict[str, BaseNode | End]

    #: The attributes that a compiled flow depends on: when one changes, it is compiled again.
    _settings: ClassVar[tuple[str, ...]] = ("name", "successors", "_dangling", "prep", "post")
    _hooks: ClassVar[Hooks] = Hooks()
    #: Whether a visit sees the node's own params too, or only those that come from above.
    _own_params: ClassVar[bool] = True
    #: What kind of node it is, for telling whether a graph has changed.
    _shape: ClassVar[str] = "node"

    def __init__(self, *, name: str | None = None) -> None:
        if name is not None and (not isinstance(name, str) or not name or "/" in name or name.isdigit()):
            raise InvalidOption(f"name={name!r}: a node's name is a text that is no number and has no '/'")
        self.name = name
        self.params = {}
        self.successors = {}
        self._dangling: set[str] = set()

    def prep(self, shared: Any, /) -> Any:
        """Read the shared state and return what ``exec`` needs."""

    def post(self, shared: Any, prep_res: Any, exec_res: Any, /) -> Any:
        """Write to the shared state and return the action, or ``(action, updates)``."""

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
            raise TypeError(f"an action is a non-empty string, not {action!r}")
        # An edge that is begun and never led anywhere is found when the flow is validated.
        if action not in self.successors:
            self._dangling.add(action)
        return Edge(self, action)

    def _strategy(self, build: Build, stage: Stage) -> Strategy | None:
        """How the runner gets from what ``prep`` returned to what ``post`` is given."""
        raise NotImplementedError

    def _given_name(self) -> str | None:
        """The name that somebody chose for it."""
        return self.name

    def _kind(self) -> str:
        """What flows call it when nobody chose a name."""
        return type(self).__name__


class Edge:
    """``node - "action"``: an edge that still needs ``>> target``."""

    def __init__(self, source: BaseNode, action: str) -> None:
        self._source = source
        self._action = action

    def __rshift__(self, node: Target) -> Target:
        return self._source.next(node, self._action)


def check_edge(source: BaseNode, target: object, action: object) -> None:
    """Raise unless an edge for ``action`` can lead from ``source`` to ``target``."""
    if not isinstance(action, str) or not action:
        raise TypeError(f"an action is a non-empty string, not {action!r}")
    if not isinstance(target, BaseNode | End):
        raise InvalidGraph(
            type(source).__name__,
            [f"the edge {action!r} leads to {target!r}, which is no node; give a node, a flow or END"],
        )


def add_edge(edges: dict[str, BaseNode | End], target: BaseNode | End, action: str) -> None:
    """Enter an edge, and warn when that takes the place of another one."""
    if edges.get(action, target) is not target:
        warnings.warn(f"Overwriting successor for action '{action}'", stacklevel=4)
    edges[action] = target
