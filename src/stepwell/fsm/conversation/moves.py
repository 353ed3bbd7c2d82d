"""The moves of a context: starting and ending flows, and entering states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepwell._secrets import quoted
from stepwell.codec import values
from stepwell.codec.json import Raw, replaced
from stepwell.errors import InvalidOption, TransitionError, UsageError
from stepwell.fsm.conversation.block import Block, NoRecord
from stepwell.fsm.conversation.extension import Waiting, end, extension_of, keep
from stepwell.fsm.conversation.history import HISTORY, entry_times, packed_times, with_entry
from stepwell.fsm.flows import typed
from stepwell.fsm.flows.description import FlowDescription
from stepwell.record import NOWHERE, Place

__all__ = ["Moves", "check_mapping"]

#: How many flows can wait for each other.
NESTED = 8


class Moves(Block):
    """The methods of ``Context`` that move it. Each returns ``True``, or the result of ``on_invalid_transition``."""

    __slots__ = ()

    @property
    def flow(self) -> str | None:
        """The name of the active flow."""
        flow: str | None = self._record.head.place.flow
        return flow

    @property
    def state(self) -> str | None:
        """The name of the present state."""
        state: str | None = self._record.head.place.state
        return state

    def start_flow(self, flow: object) -> Any:
        """Begin a flow at its default state with empty data. If it is the active flow, it begins again.

        Raises ``InvalidFlow`` for a flow that has states and no ``default_state``.
        """
        description = self._fsm.flows.find(flow)
        first = description.first_state()
        if self._refuses():
            return False
        active = self._active()
        if active is not None and active.name != description.name:
            return self._invalid(active.name, active.name, description.name, starting=True)
        self.began = True
        stack = extension_of(self._record).stack if active is not None else ()
        self._enter(Place(description.name, first, description.revision), stack=stack)
        self._record.data = {}
        return True

    def transition(self, to: str) -> Any:
        """Move to a state that the active flow declares as next."""
        if self._refuses():
            return False
        place, flow = self._record.head.place, self._active()
        if flow is None:
            _check_state("transition", to)
            return self._invalid(None, place.state, str(to))
        if not flow.allowed(place.state, to):
            _check_state("transition", to)
            allowed, problem = flow.targets(place.state), flow.problem_with(to)
            return self._invalid(place.flow, place.state, str(to), allowed=allowed, problem=problem)
        # A record of another revision keeps that revision until it is migrated.
        self._go_on(Place(place.flow, to, place.revision or flow.revision))
        return True

    def set_state(self, state: str | None, *, flow: object = None) -> Any:
        """Jump to any state of the active flow, or of the given flow. The data is kept."""
        target = None if flow is None else self._fsm.flows.find(flow)
        if self._refuses():
            return False
        place = self._record.head.place
        description = target or self._active()
        if description is None or not (state is None or description.declares(state)):
            if state is not None:
                _check_state("set_state", state)
            allowed = () if description is None else description.states
            name = None if description is None else description.name
            problem = None if description is None else description.problem_with(state)
            to = None if state is None else str(state)
            return self._invalid(name, place.state, to, allowed=allowed, problem=problem)
        if description.name == place.flow:
            self._go_on(Place(place.flow, state, place.revision or description.revision))
        else:
            self._enter(Place(description.name, state, description.revision))
        return True

    def back(self) -> Any:
        """Return to the previous state, declared as next or not. The data is kept."""
        if self._refuses():
            return False
        place, flow, kept = self._record.head.place, self._active(), extension_of(self._record)
        # States that a later release removed are skipped.
        times = entry_times(kept.entered_at, len(kept.history) + 1)
        entries = () if flow is None else zip(kept.history, times, strict=False)
        declared = [(each, at) for each, at in entries if flow is not None and flow.declares(each)]
        if flow is None or not declared:
            return self._invalid(place.flow if flow else None, place.state, None)
        *before, (state, _) = declared
        history, entered_at = tuple(each for each, _ in before), packed_times([at for _, at in before])
        to = Place(place.flow, state, place.revision or flow.revision)
        self._enter(to, history, kept.stack, entered_at=entered_at)
        return True

    def push_flow(self, flow: object, data: Mapping[Any, Any] | None = None, *, into: str | None = None) -> Any:
        """Begin another flow inside the active flow, which keeps its state and data until ``pop_flow``.

        The inner flow has its own data. Its result is stored in the field ``into`` of the outer flow's data.

        Raises ``UsageError`` if too many flows are nested.
        """
        inner = self._fsm.flows.find(flow)
        first = inner.first_state()
        check_mapping("push_flow", data)
        if self._refuses():
            return False
        record, active = self._record, self._active()
        place, kept = record.head.place, extension_of(record)
        if active is None:
            return self._invalid(None, place.state, inner.name)
        if len(kept.stack) >= NESTED:
            raise UsageError(f"flows can be nested {NESTED} deep; end one with pop_flow() first")
        typed.check_fields(inner.name, inner.data, data or {})
        data_and_into = values.encode([record.data, into], record.storage.limits)
        waiting = Waiting(place.flow, place.state, place.revision, kept.history, Raw(data_and_into))
        self._enter(Place(inner.name, first, inner.revision), stack=(*kept.stack, waiting))
        record.data = dict(data or {})
        return True

    def pop_flow(self, result: Any = None) -> Any:
        """End the inner flow, and continue the outer flow in the state it was in."""
        if self._refuses():
            return False
        place, stack = self._record.head.place, extension_of(self._record).stack
        if not stack:
            problem = f"{quoted(place.flow)} is not an inner flow; pop_flow() ends a flow that push_flow() began"
            return self._invalid(place.flow, place.state, None, problem=problem if place.flow else None)
        outer = stack[-1]
        data, into = outer.opened(self._record)
        self._enter(outer.place, outer.history, stack[:-1])
        self._record.data = data
        self.result = result
        if into is not None:
            self._check({into: result})
            self._record.data[into] = result
        return True

    def clear_flow(self) -> None:
        """End the conversation and remove its record. Without an active flow nothing happens."""
        if type(self._record) is NoRecord and not self._record.data:
            return
        if not self._refuses():
            if self._record.head.place.flow is not None:
                self._enter(NOWHERE)
            end(self._record)

    def _active(self) -> FlowDescription | None:
        """Return the active flow, or ``None`` if there is none or it is not declared here."""
        flow = self._record.head.place.flow
        return None if flow is None else self._fsm.flows.get(flow)

    def _go_on(self, to: Place) -> None:
        """Enter another state of the active flow."""
        kept, left = extension_of(self._record), self._record.head.place.state
        if left is None:
            self._enter(to, kept.history, kept.stack)
        else:
            self._enter(to, (*kept.history, left)[-HISTORY:], kept.stack, entered_at=kept.entered_at)

    def _enter(
        self, to: Place, history: tuple[str, ...] = (), stack: tuple[Waiting, ...] = (), *, entered_at: str = ""
    ) -> None:
        """Move; ``entered_at`` has the times of the states in ``history``, as far as they are known."""
        record = self._record
        left = record.head.place
        if to.state is not None:
            # A declared state is a StateName, but the codec takes exact types only.
            to = replaced(to, state=str.__str__(to.state))
        self.moves.append((left.flow, left.state, to.flow, to.state))
        self.entered = True
        entered_at = "" if to.flow is None else with_entry(entered_at, record.now)
        record.head = replaced(record.head, place=to)
        keep(record, history=history, stack=stack, entered_at=entered_at)

    def _check(self, fields: Mapping[Any, Any]) -> None:
        flow = self._active()
        if flow is not None and flow.data is not None:
            typed.check_fields(flow.name, flow.data, fields)

    def _invalid(self, flow: str | None, from_: str | None, to: str | None, **details: Any) -> Any:
        return self._fsm.transitions.refuse(TransitionError(flow, from_, to, **details), self, from_, to)


def check_mapping(method: str, given: object, *, optional: bool = True) -> None:
    """Raise ``InvalidOption`` unless a method was given a dict of fields."""
    if not isinstance(given, Mapping) and not (optional and given is None):
        raise InvalidOption(f"{method}() takes a dict of fields, got {type(given).__name__}")


def _check_state(method: str, given: object) -> None:
    """Raise ``InvalidOption`` if this is a flow, or anything other than the name of a state."""
    if isinstance(given, str):
        return
    flow = getattr(given, "flow_name", None)
    if isinstance(flow, str):
        raise InvalidOption(f"{method}() takes a state, and {quoted(flow)} is a flow; begin the flow with start_flow()")
    raise InvalidOption(f"{method}() takes a state or its name, got {quoted(given)}")
