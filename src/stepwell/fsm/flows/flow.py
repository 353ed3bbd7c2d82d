"""Flows: the states of a conversation and the moves between them, checked when the class is defined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from math import inf
from typing import Any, ClassVar

from stepwell._secrets import quoted
from stepwell.errors import InvalidFlow
from stepwell.fsm.flows.description import RESERVED, FlowDescription, StateName, Timeout, checked
from stepwell.fsm.flows.diagram import diagram as draw
from stepwell.fsm.flows.hooks import check_hooks, takes

__all__ = ["Flow", "state"]


def state(
    *,
    to: Iterable[str] | None = None,
    timeout: float | timedelta | None = None,
    on_timeout: str | Callable[..., Any] | None = None,
    idle: bool = False,
) -> StateName:
    """Declare a state in the body of a ``Flow``.

    ``to`` lists the states that may follow; a last state has ``to=[]``. If no state of a flow has ``to``, every move is
    allowed. ``timeout`` is in seconds and starts when the state is entered; with ``idle`` every update of the
    conversation restarts it, which costs a write. ``on_timeout`` is the state to move to then, or a handler.

    Example::

        class Order(Flow, name="order"):
            size = state(to=["name"], timeout=600, on_timeout="size")
            name = state(to=[])
            default_state = size
    """
    declaration = _Declaration("")
    declaration.to = tuple(to) if isinstance(to, Iterable) and not isinstance(to, str) else to
    declaration.timeout = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    declaration.on_timeout = on_timeout
    declaration.idle = idle
    return declaration


class _Declaration(StateName):
    """A state inside the body of its class, where it has no name yet."""

    to: Iterable[str] | None
    idle: bool


class Flow:
    """Subclass it to declare a flow::

        class Registration(Flow, name="registration"):
            get_name = state(to=["get_email"])
            get_email = state(to=["confirm", "get_name"], timeout=600, on_timeout="get_name")
            confirm = state(to=[])
            default_state = get_name

    The options are class arguments, so that states may be called ``name`` or ``data``. ``name`` is the name that is
    stored. ``data`` is the type of the data: a dataclass, msgspec Struct, TypedDict or pydantic model. Increase
    ``revision`` when a release changes states or data. ``ttl`` is how many seconds a conversation in this flow is kept.

    A flow may have three hooks, as functions, static methods or methods: ``on_enter(ctx, state)``,
    ``on_leave(ctx, state)`` and ``migrate(old_revision, state, data)``. ``migrate`` gets the state and the data of a
    record of an earlier revision, and returns both for the present revision.
    """

    #: The name that is stored.
    flow_name: ClassVar[str]
    #: Every state, in the order of declaration.
    states: ClassVar[tuple[StateName, ...]]
    #: The declared targets of each state that has ``to``; empty if every move is allowed.
    transitions: ClassVar[Mapping[str, tuple[str, ...]]]
    #: The state that ``start_flow`` enters; declare ``None`` to start in no state.
    default_state: ClassVar[str | None] = None

    __flow__: ClassVar[FlowDescription]

    def __init_subclass__(
        cls,
        *,
        name: str | None = None,
        data: type | None = None,
        revision: int = 1,
        ttl: float | None = None,
        **rest: Any,
    ) -> None:
        try:
            super().__init_subclass__(**rest)
        except TypeError as error:
            if not rest:
                raise
            unknown = ", ".join(f"{each}=" for each in rest)
            raise InvalidFlow(
                cls.__name__, f"the class takes name=, data=, revision= and ttl=, not {unknown}"
            ) from error
        parent = next((base for base in cls.__mro__[1:] if "__flow__" in vars(base)), None)
        if parent is not None:
            problem = f"{parent.__name__} is a complete flow; derive from Flow and declare all states again"
            raise InvalidFlow(cls.__name__, problem)
        if not isinstance(name, str) or not name:
            problem = f'a flow needs a name, a string: class {cls.__name__}(Flow, name="..."); got {quoted(name)}'
            raise InvalidFlow(cls.__name__, problem)
        for computed in ("flow_name", "states", "transitions"):
            if computed in vars(cls) and not isinstance(vars(cls)[computed], _Declaration):
                raise InvalidFlow(name, f"{quoted(computed)} is computed from name= and the states; remove it")
        check_hooks(cls, name)
        declarations = _declarations(cls, name)
        default = vars(cls).get("default_state")
        names = {id(declaration): state_name for state_name, declaration in declarations.items()}
        if isinstance(default, _Declaration) and id(default) not in names:
            raise _reserved(name, "default_state")

        def resolved(value: Any) -> Any:
            # The class body refers to a state by its declaration, because the name is not known there.
            return names.get(id(value), value) if isinstance(value, _Declaration) else value

        timeouts = {
            each: timeout
            for each, declaration in declarations.items()
            if (timeout := _timeout(name, each, declaration, resolved)) is not None
        }
        description = checked(
            FlowDescription(
                name=name,
                states=tuple(StateName(each, flow_name=name, timeout=timeouts.get(each)) for each in declarations),
                transitions={
                    each: _targets(name, each, declaration.to, resolved)
                    for each, declaration in declarations.items()
                    if declaration.to is not None
                },
                default_state=resolved(default),
                default_given="default_state" in vars(cls),
                data=data,
                revision=revision,
                ttl=ttl,
                timeouts=timeouts,
                source=cls,
            )
        )
        for each in description.states:
            setattr(cls, each, each)
        cls.flow_name = name
        cls.states = description.states
        cls.transitions = description.transitions
        cls.default_state = description.default_state
        cls.__flow__ = description

    @classmethod
    def diagram(cls, current: str | None = None) -> str:
        """Return the flow as Mermaid text, with the current state marked."""
        return draw(cls.__flow__, current)


def _declarations(cls: type, flow: str) -> dict[str, _Declaration]:
    found: dict[str, _Declaration] = {}
    # Mixins may declare states too. Base classes come first, so that a subclass overrides them.
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            if value is state:
                raise InvalidFlow(flow, f"{name} = state does not declare a state; write {name} = state()")
            if not isinstance(value, _Declaration) or name == "default_state":
                continue
            if name in RESERVED:
                raise _reserved(flow, name)
            twin = next((other for other, declaration in found.items() if declaration is value), None)
            if twin is not None:
                raise InvalidFlow(
                    flow, f"{quoted(twin)} and {quoted(name)} are the same state(); call state() for each"
                )
            found[name] = value
    return found


def _reserved(flow: str, name: str) -> InvalidFlow:
    return InvalidFlow(flow, f"a state cannot be called {quoted(name)}; the reserved names are {', '.join(RESERVED)}")


def _targets(flow: str, name: str, to: Iterable[str], resolved: Callable[[Any], Any]) -> tuple[str, ...]:
    if isinstance(to, str) and not isinstance(to, _Declaration):
        raise InvalidFlow(flow, f"state {quoted(name)}: to= takes a list of states, write to=[{quoted(to)}]")
    if isinstance(to, _Declaration) or not isinstance(to, Iterable):
        raise InvalidFlow(flow, f"state {quoted(name)}: to= takes a list of states")
    return tuple(dict.fromkeys(resolved(target) for target in to))


def _timeout(flow: str, name: str, declaration: _Declaration, resolved: Callable[[Any], Any]) -> Timeout | None:
    seconds, then = declaration.timeout, resolved(declaration.on_timeout)
    if seconds is None:
        if then is not None or declaration.idle:
            option = "on_timeout=" if then is not None else "idle=True"
            raise InvalidFlow(flow, f"state {quoted(name)}: {option} needs a timeout=")
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < inf:
        raise InvalidFlow(
            flow, f"state {quoted(name)}: timeout= must be a number of seconds above 0, got {quoted(seconds)}"
        )
    if callable(then) and not takes(then, 1):
        raise InvalidFlow(
            flow, f"state {quoted(name)}: on_timeout= takes a state or a function of the context, got {quoted(then)}"
        )
    return Timeout(seconds=float(seconds), then=then, idle=declaration.idle)
