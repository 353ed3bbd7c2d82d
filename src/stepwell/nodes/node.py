"""A node: hooks that the runner calls in order, and the edges that lead away from it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar

from stepwell.errors import InvalidGraph, InvalidOption
from stepwell.nodes.engine.attempts import ExecPolicy, Setting, attempt_node

if TYPE_CHECKING:
    from stepwell.nodes.engine.plan import Build, Stage, Strategy

__all__ = ["END", "BaseNode", "End", "Node"]

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


class Node(BaseNode):
    """One step: ``prep`` reads the shared state, ``exec`` works, ``post`` writes and chooses the edge.

    Each hook is ``def`` or ``async def``. Only ``exec`` is retried, and only ``exec`` leaves the event
    loop: a ``def exec`` runs in a thread unless the node is ``inline``. Every visit runs on a shallow
    copy of the node, so what ``prep`` puts on ``self`` is seen by ``exec`` and ``post`` of that visit only.

    :param max_retries: how often ``exec`` is tried in all, at least 1.
    :param wait: seconds between two attempts.
    :param backoff: what ``wait`` is multiplied with after each further attempt.
    :param jitter: up to so many seconds are added to each wait, at random.
    :param retry_on: the exception class, or a tuple of them, that is worth another attempt.
    :param timeout: seconds that one attempt may take. The thread of a ``def exec`` cannot be stopped:
        its result is ignored, and it runs on to its end.
    :param inline: run a ``def exec`` on the event loop itself; for quick work.
    """

    _settings: ClassVar[tuple[str, ...]] = (*BaseNode._settings, "_policy", "exec", "exec_fallback")

    max_retries = Setting()
    wait = Setting()
    backoff = Setting()
    jitter = Setting()
    retry_on = Setting()
    timeout = Setting()
    inline = Setting()

    def __init__(
        self,
        max_retries: int = 1,
        wait: float = 0,
        *,
        name: str | None = None,
        backoff: float = 1,
        jitter: float = 0,
        retry_on: type[Exception] | tuple[type[Exception], ...] = Exception,
        timeout: float | None = None,
        inline: bool = False,
    ) -> None:
        super().__init__(name=name)
        self._policy = ExecPolicy(max_retries, wait, backoff, jitter, retry_on, timeout, inline)

    def exec(self, prep_res: Any, /) -> Any:
        """Do the work, without the shared state: it may run again, and in a thread."""

    def exec_fallback(self, prep_res: Any, error: Exception, /) -> Any:
        """Give a result after the last attempt has failed, or raise."""
        raise error

    def _strategy(self, build: Build, stage: Stage) -> Strategy | None:
        stage.policy = policy = self._policy
        stage.has_fallback = type(self).exec_fallback is not Node.exec_fallback or "exec_fallback" in vars(self)
        stage.threaded = not (stage.is_async("exec") or policy.inline or build.by_hand)
        if policy.timeout is not None:
            build.want_loop(f"{stage.path} has a timeout")
            if policy.inline and not stage.is_async("exec"):
                build.problem(f"{stage.path} is inline, where no timeout can interrupt it: drop one of the two")
        if policy.plain and not stage.has_fallback and not stage.threaded and not build.gated:
            return None
        return attempt_node
