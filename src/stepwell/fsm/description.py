"""What the machine needs to know of a flow, whoever wrote it: a class, an object, or something by hand."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Self

from stepwell.errors import InvalidFlow, InvalidOption, UnknownFlowError
from stepwell.fsm.hooks import hook_of
from stepwell.fsm.typed import is_data_type

__all__ = [
    "RESERVED",
    "FlowDescription",
    "Flows",
    "StateName",
    "Timeout",
    "UnreachableState",
    "checked",
    "describe",
    "name_of",
]

#: Names of a flow that no state can have.
RESERVED = (
    "flow_name",
    "states",
    "transitions",
    "default_state",
    "diagram",
    "migrate",
    "on_enter",
    "on_leave",
)


class UnreachableState(UserWarning):
    """No declared path leads to a state; only ``set_state`` can enter it."""


class StateName(str):
    """The name of a state, which knows its flow. Everywhere else it is a plain string."""

    #: The flow's name; ``None`` inside the class body, where it is not known yet.
    flow_name: str | None
    #: Seconds from entering the state, when it has a timeout.
    timeout: float | None
    #: The state or the handler that follows a timeout.
    on_timeout: str | Callable[..., Any] | None

    def __new__(cls, name: str, *, flow_name: str | None = None, timeout: Timeout | None = None) -> Self:
        self = super().__new__(cls, name)
        self.flow_name = flow_name
        self.timeout = timeout.seconds if timeout else None
        self.on_timeout = timeout.then if timeout else None
        return self

    def __reduce__(self) -> tuple[object, ...]:
        # What is copied, pickled or stored is the bare name: a flow may be gone when it comes back.
        return str, (str(self),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeout:
    """How long a state lasts at most, and what comes then."""

    #: Counted from entering the state.
    seconds: float
    #: The state to move to, or a handler; ``None`` when nothing was given.
    then: str | Callable[..., Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlowDescription:
    """One flow in the one form that the machine reads."""

    #: What is stored as ``flow``.
    name: str
    #: In the order of declaration.
    states: tuple[StateName, ...]
    #: The declared targets; a state without an entry has no ``to``.
    transitions: Mapping[str, tuple[str, ...]]
    #: The state that ``start_flow`` enters.
    default_state: str | None = None
    #: ``default_state`` was given; ``None`` may be meant.
    default_given: bool = True
    #: The declared type of the data.
    data: type | None = None
    #: Grows when a release changes states or data.
    revision: int = 1
    #: Seconds that a conversation in this flow is kept for; ``None``: as long as the bot says.
    ttl: float | None = None
    #: Only the states that have one.
    timeouts: Mapping[str, Timeout] = field(default_factory=dict)
    #: Where hooks are looked up: the class or object that was given.
    source: object = None

    @property
    def is_open(self) -> bool:
        """No state says ``to``, so every move is allowed."""
        return not self.transitions

    def first_state(self) -> str | None:
        """Return the state that the flow begins in, or raise ``InvalidFlow`` if it has states and none is the first."""
        if self.default_given or not self.states:
            return self.default_state
        raise InvalidFlow(
            self.name,
            f"it has no default_state, so it cannot be started; {_states(self)}: set default_state to one of them, "
            "or default_state = None to start in no state",
        )

    def hook(self, name: str) -> Callable[..., Any] | None:
        """A hook of the flow as a function of its documented arguments; ``None`` where it has none."""
        return hook_of(self.source, name)

    def declares(self, state: str | None) -> bool:
        """Whether this is a state of the flow. ``Other.email`` is not, even where this flow has an ``email``."""
        return state in self.states and getattr(state, "flow_name", None) in (None, self.name)

    def problem_with(self, state: str | None) -> str | None:
        """Why this is no state of the flow; ``None`` where it is one."""
        if self.declares(state):
            return None
        other = getattr(state, "flow_name", None)
        if other in (None, self.name):
            return f"{state!r} is not a state of flow {self.name!r}; {_states(self)}"
        return (
            f"{str(state)!r} belongs to flow {other!r}, not to {self.name!r}; "
            f"jump there with set_state({str(state)!r}, flow={other!r})"
        )

    def targets(self, from_: str | None) -> tuple[str, ...]:
        """The states that may follow. From ``None``, before the first state, that is any."""
        if from_ is None:
            return self.states
        if from_ not in self.states:
            return ()
        return self.states if self.is_open else self.transitions.get(from_, ())

    def allowed(self, from_: str | None, to: str) -> bool:
        """Whether a declared edge leads there."""
        targets = None if from_ is None else self.transitions.get(from_)
        if targets is None:
            targets = self.targets(from_)
        return to in targets and getattr(to, "flow_name", None) in (None, self.name)


def describe(flow: object) -> FlowDescription:
    """The description of a ``Flow`` class or instance, or of any object with
    ``flow_name, states, transitions, default_state`` (``data`` and ``revision`` if it has them)."""
    found = getattr(flow, "__flow__", None)
    if isinstance(found, FlowDescription):
        if isinstance(flow, type):
            return found
        # Hooks of an instance may use what it was made with.
        return replace(found, source=flow)
    name = _attribute(flow, "flow_name")
    if not isinstance(name, str) or not name:
        raise InvalidFlow(
            getattr(flow, "__name__", type(flow).__name__),
            "is no flow: derive from Flow, or give it flow_name, states, transitions and default_state",
        )
    try:
        states = list(_attribute(flow, "states") or ())
        transitions = {each: list(to) for each, to in dict(_attribute(flow, "transitions") or {}).items()}
    except (TypeError, ValueError) as error:
        raise InvalidFlow(
            name, "states must be a list of names, and transitions a dict from a name to a list of names"
        ) from error
    odd = [each for each in states if not isinstance(each, str)]
    if odd:
        raise InvalidFlow(name, f"a state is a string, got {odd[0]!r}")
    description, unreachable = checked(
        FlowDescription(
            name=name,
            states=tuple(StateName(each, flow_name=name) for each in states),
            transitions={each: tuple(dict.fromkeys(to)) for each, to in transitions.items()},
            default_state=_attribute(flow, "default_state"),
            default_given=hasattr(flow, "default_state"),
            data=getattr(flow, "data", None),
            revision=getattr(flow, "revision", 1),
            ttl=getattr(flow, "ttl", None),
            source=flow,
        )
    )
    for unreached in unreachable:
        warnings.warn(unreached, stacklevel=2)
    return description


def _attribute(flow: object, name: str) -> Any:
    value = getattr(flow, name, None)
    if isinstance(flow, type) and callable(value):
        raise InvalidFlow(flow.__name__, f"{name} is a method, so give an object of the class")
    return value() if callable(value) else value


def checked(flow: FlowDescription) -> tuple[FlowDescription, list[UnreachableState]]:
    """The description with its mappings frozen, or ``InvalidFlow``; and what is worth a warning."""
    for twice in (each for each in flow.states if flow.states.count(each) > 1):
        raise InvalidFlow(flow.name, f"state {str(twice)!r} is declared twice")
    for state, targets in flow.transitions.items():
        if state not in flow.states:
            raise InvalidFlow(flow.name, f"transitions are declared for {state!r}, which is not a state of it")
        for target in targets:
            if target not in flow.states:
                raise InvalidFlow(
                    flow.name, f"state {state!r} leads to {target!r}, which is not declared; {_states(flow)}"
                )
    if flow.default_state is not None and flow.default_state not in flow.states:
        raise InvalidFlow(flow.name, f"default_state is {flow.default_state!r}, which is not declared; {_states(flow)}")
    for state, timeout in flow.timeouts.items():
        if not callable(timeout.then) and timeout.then is not None and timeout.then not in flow.states:
            raise InvalidFlow(
                flow.name,
                f"state {state!r} times out to {timeout.then!r}, which is not declared; {_states(flow)}",
            )
    if flow.data is not None and not is_data_type(flow.data):
        raise InvalidFlow(
            flow.name,
            f"data= must be a dataclass, msgspec Struct, TypedDict or pydantic model, got {flow.data!r}",
        )
    if type(flow.revision) is not int or flow.revision < 1:
        raise InvalidFlow(flow.name, f"revision= is a whole number from 1 on, got {flow.revision!r}")
    if flow.ttl is not None and (not isinstance(flow.ttl, int | float) or not flow.ttl > 0):
        raise InvalidFlow(flow.name, f"ttl= is a number of seconds above 0, got {flow.ttl!r}")
    frozen = replace(
        flow,
        transitions=MappingProxyType(dict(flow.transitions)),
        timeouts=MappingProxyType(dict(flow.timeouts)),
        # One object per state: what Form.default_state gives knows its flow too.
        default_state=next((each for each in flow.states if each == flow.default_state), None),
    )
    return frozen, [
        UnreachableState(
            f"flow {flow.name!r}: no path leads from {flow.default_state!r} to {str(unreached)!r}; "
            "list it in a to=[...], or enter it with set_state(...)"
        )
        for unreached in _unreachable(frozen)
    ]


def _states(flow: FlowDescription) -> str:
    return f"its states are {', '.join(repr(str(each)) for each in flow.states) or 'none'}"


def _unreachable(flow: FlowDescription) -> list[str]:
    if flow.default_state is None or flow.is_open:
        return []
    reached, ahead = set(), [str(flow.default_state)]
    while ahead:
        state = ahead.pop()
        if state in reached:
            continue
        reached.add(state)
        ahead.extend(flow.targets(state))
        timeout = flow.timeouts.get(state)
        if timeout is not None and isinstance(timeout.then, str):
            ahead.append(timeout.then)
    return [state for state in flow.states if state not in reached]


class Flows(dict[str, FlowDescription]):
    """The registered flows by name; ``find`` also takes a class or an object."""

    def __init__(self, flows: Iterable[object]) -> None:
        super().__init__()
        if not isinstance(flows, Iterable) or isinstance(flows, str):
            given = getattr(flows, "__name__", repr(flows))
            raise InvalidOption(f"flows is a list of flows, also where there is one: FSM(..., flows=[{given}])")
        for flow in flows:
            description = describe(flow)
            known = self.setdefault(description.name, description)
            if known is not description:
                raise InvalidFlow(
                    description.name, f"two flows have this name: {known.source!r} and {description.source!r}"
                )

    def find(self, flow: object) -> FlowDescription:
        """The registered flow of that class, object or name; ``UnknownFlowError`` when there is none."""
        name = name_of(flow)
        try:
            return self[name]
        except KeyError:
            raise UnknownFlowError(name, self) from None


def name_of(flow: object) -> str:
    """The name of a flow that is given as class, object or plain name."""
    if isinstance(flow, str):
        return str(flow)
    name = _attribute(flow, "flow_name")
    if not isinstance(name, str):
        raise InvalidFlow(repr(flow), "is no flow: give a Flow class, a flow object, or a flow's name")
    return name
