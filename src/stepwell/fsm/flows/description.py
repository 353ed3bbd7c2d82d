"""Descriptions of flows: one form for ``Flow`` classes, their instances, and other objects with the same attributes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Self

from stepwell._secrets import quoted
from stepwell.codec import check_name
from stepwell.codec.secret import register_data
from stepwell.errors import InvalidFlow, InvalidOption, UnknownFlowError
from stepwell.fsm.flows.hooks import hook_of
from stepwell.fsm.flows.typed import is_data_type

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

#: Attributes of a flow, which are not allowed as names of states.
RESERVED = ("flow_name", "states", "transitions", "default_state", "diagram", "migrate", "on_enter", "on_leave")


class UnreachableState(UserWarning):
    """A state that no declared path leads to; only ``set_state`` can enter it.

    Example::

        with pytest.warns(UnreachableState):
            class Order(Flow, name="order"):
                get_item = state(to=[])
                pay = state(to=[])
                default_state = get_item
    """


class StateName(str):
    """The name of a state, a ``str`` that also has the name of its flow.

    Example::

        assert Registration.get_email == "get_email"
        assert Registration.get_email.flow_name == "registration"
    """

    #: The flow's name; ``None`` inside the class body.
    flow_name: str | None
    #: Seconds from entering the state to its timeout; ``None`` without a timeout.
    timeout: float | None
    #: The state that follows the timeout, or a handler.
    on_timeout: str | Callable[..., Any] | None

    def __new__(cls, name: str, *, flow_name: str | None = None, timeout: Timeout | None = None) -> Self:
        self = super().__new__(cls, name)
        self.flow_name = flow_name
        self.timeout = timeout.seconds if timeout else None
        self.on_timeout = timeout.then if timeout else None
        return self

    def __reduce__(self) -> tuple[object, ...]:
        # Copies and pickles are plain strings, because the flow may not exist where they are loaded.
        return str, (str(self),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeout:
    """The longest time that a state lasts, and what follows."""

    #: Counted from entering the state, or from the last update if ``idle``.
    seconds: float
    #: The state to move to, or a handler; ``None`` ends the conversation.
    then: str | Callable[..., Any] | None = None
    idle: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlowDescription:
    """A flow in the form that the machine reads."""

    #: The name that is stored.
    name: str
    #: In the order of declaration.
    states: tuple[StateName, ...]
    #: The declared targets of each state that has ``to``.
    transitions: Mapping[str, tuple[str, ...]]
    #: The state that ``start_flow`` enters.
    default_state: str | None = None
    #: ``default_state`` was declared, perhaps as ``None``.
    default_given: bool = True
    #: The declared type of the data.
    data: type | None = None
    #: Increased by a release that changes states or data.
    revision: int = 1
    #: Seconds that a conversation in this flow is kept; ``None``: the ``ttl`` of the machine.
    ttl: float | None = None
    #: The timeouts of the states that have one.
    timeouts: Mapping[str, Timeout] = field(default_factory=dict)
    #: The states whose timeout restarts with every update.
    idle: frozenset[str] = frozenset()
    #: The class or object that was registered; it has the hooks.
    source: object = None

    @property
    def is_open(self) -> bool:
        """No state has ``to``, so every move is allowed."""
        return not self.transitions

    def first_state(self) -> str | None:
        """Return the state that the flow begins in. Raises ``InvalidFlow`` if no ``default_state`` is declared."""
        if self.default_given or not self.states:
            return self.default_state
        raise InvalidFlow(
            self.name,
            f"it has no default_state, so it cannot be started; {_states(self)}: set default_state to one of them, "
            "or default_state = None to start in no state",
        )

    def hook(self, name: str) -> Callable[..., Any] | None:
        """Return a hook as a function of its documented arguments, or ``None`` if the flow does not have it."""
        return hook_of(self.source, name)

    def declares(self, state: str | None) -> bool:
        """Return whether this is a state of the flow. ``Other.email`` is not, even if the flow has an ``email``."""
        return state in self.states and getattr(state, "flow_name", None) in (None, self.name)

    def problem_with(self, state: str | None) -> str | None:
        """Return why this is not a state of the flow, or ``None`` if it is."""
        if self.declares(state):
            return None
        other = getattr(state, "flow_name", None)
        if other in (None, self.name):
            return f"{quoted(state)} is not a state of flow {quoted(self.name)}; {_states(self)}"
        return (
            f"{quoted(str(state))} belongs to flow {quoted(other)}, not to {quoted(self.name)}; "
            f"jump there with set_state({quoted(str(state))}, flow={quoted(other)})"
        )

    def targets(self, from_: str | None) -> tuple[str, ...]:
        """Return the states that may follow. From ``None``, before the first state, any state may."""
        if from_ is None:
            return self.states
        if from_ not in self.states:
            return ()
        return self.states if self.is_open else self.transitions.get(from_, ())

    def allowed(self, from_: str | None, to: str) -> bool:
        """Return whether the flow allows this move."""
        targets = None if from_ is None else self.transitions.get(from_)
        if targets is None:
            targets = self.targets(from_)
        return to in targets and getattr(to, "flow_name", None) in (None, self.name)


def describe(flow: object) -> FlowDescription:
    """Return the description of a ``Flow`` class or instance, or of another object with the attributes of a flow.

    Those are ``flow_name, states, transitions, default_state`` and, optionally, ``data``, ``revision`` and ``ttl``.
    """
    found = getattr(flow, "__flow__", None)
    if isinstance(found, FlowDescription):
        if isinstance(flow, type):
            return found
        # Hooks are called on the instance, so that they can use its attributes.
        return replace(found, source=flow)
    name = _attribute(flow, "flow_name")
    if not isinstance(name, str) or not name:
        raise InvalidFlow(
            getattr(flow, "__name__", type(flow).__name__),
            "is not a flow: derive from Flow, or define flow_name, states, transitions and default_state",
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
        raise InvalidFlow(name, f"a state must be a string, got {quoted(odd[0])}")
    return checked(
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


def _attribute(flow: object, name: str) -> Any:
    value = getattr(flow, name, None)
    if isinstance(flow, type) and callable(value):
        raise InvalidFlow(flow.__name__, f"{name} is a method; register an object of the class")
    return value() if callable(value) else value


def checked(flow: FlowDescription) -> FlowDescription:
    """Return the description with its mappings frozen, and warn of states that no path leads to.

    Raises ``InvalidFlow``. The warnings name the caller of the calling function as their place.
    """
    check_name("the flow", flow.name)
    for state in flow.states:
        check_name(f"flow {quoted(flow.name)}: the state", state)
    for problem in _problems(flow):
        raise InvalidFlow(flow.name, problem)
    if flow.data is not None:
        register_data("flow", flow.name, flow.data)
    frozen = replace(
        flow,
        transitions=MappingProxyType(dict(flow.transitions)),
        timeouts=MappingProxyType(dict(flow.timeouts)),
        idle=frozenset(name for name, timeout in flow.timeouts.items() if timeout.idle),
        # The same object as in states, so that Form.default_state has its flow_name too.
        default_state=next((each for each in flow.states if each == flow.default_state), None),
    )
    for unreached in _unreachable(frozen):
        warning = (
            f"flow {quoted(flow.name)}: no path leads from {quoted(flow.default_state)} to {quoted(str(unreached))}; "
            "list it in a to=[...], or enter it with set_state(...)"
        )
        warnings.warn(warning, UnreachableState, stacklevel=3)
    return frozen


def _problems(flow: FlowDescription) -> Iterator[str]:
    not_declared = f"which is not declared; {_states(flow)}"
    yield from (f"state {quoted(str(each))} is declared twice" for each in flow.states if flow.states.count(each) > 1)
    for state, targets in flow.transitions.items():
        if state not in flow.states:
            yield f"transitions are declared for {quoted(state)}, {not_declared}"
        yield from (
            f"state {quoted(state)} leads to {quoted(to)}, {not_declared}" for to in targets if to not in flow.states
        )
    if flow.default_state is not None and flow.default_state not in flow.states:
        yield f"default_state is {quoted(flow.default_state)}, {not_declared}"
    for state, timeout in flow.timeouts.items():
        if not callable(timeout.then) and timeout.then is not None and timeout.then not in flow.states:
            yield f"state {quoted(state)} times out to {quoted(timeout.then)}, {not_declared}"
    if flow.data is not None and not is_data_type(flow.data):
        yield f"data= must be a dataclass, msgspec Struct, TypedDict or pydantic model, got {quoted(flow.data)}"
    if type(flow.revision) is not int or flow.revision < 1:
        yield f"revision= must be an int of at least 1, got {quoted(flow.revision)}"
    if flow.ttl is not None and (not isinstance(flow.ttl, int | float) or not flow.ttl > 0):
        yield f"ttl= must be a number of seconds above 0, got {quoted(flow.ttl)}"


def _states(flow: FlowDescription) -> str:
    return f"its states are {', '.join(repr(str(each)) for each in flow.states) or 'none'}"


def _unreachable(flow: FlowDescription) -> list[str]:
    if flow.default_state is None or flow.is_open:
        return []
    reached, queue = set(), [str(flow.default_state)]
    while queue:
        state = queue.pop()
        if state in reached:
            continue
        reached.add(state)
        queue.extend(flow.targets(state))
        timeout = flow.timeouts.get(state)
        if timeout is not None and isinstance(timeout.then, str):
            queue.append(timeout.then)
    return [state for state in flow.states if state not in reached]


class Flows(dict[str, FlowDescription]):
    """The registered flows by name."""

    def __init__(self, flows: Iterable[object]) -> None:
        super().__init__()
        if not isinstance(flows, Iterable) or isinstance(flows, str):
            given = getattr(flows, "__name__", quoted(flows))
            raise InvalidOption(f"flows takes a list, even of one flow: FSM(..., flows=[{given}])")
        for flow in flows:
            description = describe(flow)
            known = self.setdefault(description.name, description)
            if known is not description:
                raise InvalidFlow(
                    description.name,
                    f"two flows have this name: {quoted(known.source)} and {quoted(description.source)}",
                )

    def find(self, flow: object) -> FlowDescription:
        """Return the flow with that class, object or name. Raises ``UnknownFlowError`` if it is not registered."""
        name = name_of(flow)
        try:
            return self[name]
        except KeyError:
            raise UnknownFlowError(name, self) from None


def name_of(flow: object) -> str:
    """Return the name of a flow that is given as class, object or name."""
    if isinstance(flow, StateName) and flow.flow_name is not None:
        state, owner = str(flow), flow.flow_name
        raise InvalidOption(
            f"{quoted(state)} is a state of flow {quoted(owner)}, and a flow is expected; pass the flow "
            f"{quoted(owner)}, or enter the "
            f"state with set_state({quoted(state)}, flow={quoted(owner)})"
        )
    if isinstance(flow, str):
        return str(flow)
    name = _attribute(flow, "flow_name")
    if not isinstance(name, str):
        raise InvalidFlow(repr(flow), "is not a flow: pass a Flow class, a flow object, or a flow's name")
    return name
