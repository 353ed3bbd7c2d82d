"""The context: a handler's view of its conversation."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from stepwell.errors import ContextClosed, DuplicateUpdate, InvalidOption, NoKeyError, TransitionError, UsageError
from stepwell.fsm import keys, typed
from stepwell.fsm.commit import write
from stepwell.fsm.description import FlowDescription
from stepwell.fsm.update import Update
from stepwell.record import NOWHERE, Place

if TYPE_CHECKING:
    from stepwell.fsm.machine import FSM
    from stepwell.slot import Slot

__all__ = ["CLOSED", "Context", "Handler", "Move", "NoRecord"]

T = TypeVar("T")
#: One step: flow and state that were left, flow and state that were entered.
Move: TypeAlias = tuple[str | None, str | None, str | None, str | None]

#: How many states ``back()`` can go back through.
HISTORY = 16
#: How many flows can wait for each other.
NESTED = 8


class NoRecord:
    """Stands in for a record where the update has no key: empty, and never stored."""

    __slots__ = ("data", "key_given")

    place = NOWHERE

    def __init__(self, *, key_given: bool) -> None:
        #: ``key=None`` was given, and no key strategy was called.
        self.key_given = key_given
        self.data: dict[Any, Any] = {}


class _Closed:
    """Stands in for the record after the block."""

    def __getattr__(self, name: str) -> Any:
        raise ContextClosed


CLOSED = _Closed()


class Context:
    """One conversation while one update is handled.

    Nothing is stored before the block ends well. What changes here changes in memory, and is written at
    the end in one step; if the block raises, it is as if it had never run.
    """

    __slots__ = (
        "_calls", "_fsm", "_record", "began", "duplicate", "entered", "key", "match", "moves", "moves_told", "result",
        "saved", "started", "update", "update_id",
    )  # fmt: skip

    #: The update; its ``raw`` is ``None`` where only a ``key=`` was given.
    update: Update
    #: Where the conversation is kept; ``None`` where the update has no key.
    key: Any
    #: This update was handled before (only with ``on_duplicate="enter"``); changes are refused.
    duplicate: bool
    #: What the regex of the filter that chose this handler matched.
    match: re.Match[str] | None
    #: What the flow that ended last (``pop_flow``) gave back.
    result: Any

    def __init__(self, fsm: FSM, update: Update, key: Any, record: Slot | NoRecord, *, collects: bool) -> None:
        self._fsm = fsm
        self._record: Any = record
        self._calls: list[dict[str, Any]] | None = [] if collects else None
        self.update = update
        #: The id that the update is remembered by.
        self.update_id: int | str | None = None
        self.key = key
        self.duplicate = False
        self.match = None
        self.result = None
        #: ``save()`` has written something.
        self.saved = False
        #: A state was entered since the last write.
        self.entered = False
        #: A flow was started in this block.
        self.began = False
        #: When the record was claimed, on the monotonic clock.
        self.started = monotonic()
        #: All steps so far, for the hooks.
        self.moves: list[Move] = []
        #: How many of them were emitted as events.
        self.moves_told = 0

    # Reading

    @property
    def flow(self) -> str | None:
        """The name of the active flow."""
        flow: str | None = self._record.place.flow
        return flow

    @property
    def state(self) -> str | None:
        """The name of the state in that flow."""
        state: str | None = self._record.place.state
        return state

    @property
    def data(self) -> dict[Any, Any]:
        """The data. It may be changed in place."""
        data: dict[Any, Any] = self._record.data
        return data

    def data_as(self, kind: type[T]) -> T:
        """The data as one object of a type; ``IncompleteData`` names what is missing."""
        return typed.build(kind, self._record.data)

    @property
    def text(self) -> str | None:
        """The text of the message."""
        return self.update.text

    @property
    def args(self) -> str:
        """What follows a command: ``/start hello`` gives ``"hello"``."""
        command = self.update.command
        return command.args if command is not None else ""

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The Bot API calls collected so far."""
        return self._collected()

    # Moving. Each returns True when it moved, else what the policy returned.

    def start_flow(self, flow: object) -> Any:
        """Begin a flow at its default state with empty data; the same flow begins anew.

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
        stack = self._record.place.stack if active is not None else ()
        self._enter(description.name, first, description.revision, (), stack)
        self._record.data = {}
        return True

    def transition(self, to: str) -> Any:
        """Move along a declared edge of the active flow."""
        if self._refuses():
            return False
        name, state, revision, history, stack, *_ = self._record.place
        flow = None if name is None else self._fsm.flows.get(name)
        if flow is None:
            return self._invalid(None, state, str(to))
        if not flow.allowed(state, to):
            return self._invalid(name, state, str(to), allowed=flow.targets(state), problem=flow.problem_with(to))
        # A record of another revision keeps it until it is migrated.
        history = history if state is None else (*history, state)[-HISTORY:]
        self._enter(name, to, revision or flow.revision, history, stack)
        return True

    def set_state(self, state: str | None, *, flow: object = None) -> Any:
        """Jump to a state of the active flow, or of the flow given, whatever the edges say; the data stays."""
        target = None if flow is None else self._fsm.flows.find(flow)
        if self._refuses():
            return False
        place = self._record.place
        description = target or self._active()
        if description is None or not (state is None or description.declares(state)):
            allowed = () if description is None else description.states
            name = None if description is None else description.name
            problem = None if description is None else description.problem_with(state)
            to = None if state is None else str(state)
            return self._invalid(name, place.state, to, allowed=allowed, problem=problem)
        if description.name == place.flow:
            revision = place.revision or description.revision
            history = place.history if place.state is None else (*place.history, place.state)[-HISTORY:]
            self._enter(place.flow, state, revision, history, place.stack)
        else:
            self._enter(description.name, state, description.revision)
        return True

    def back(self) -> Any:
        """Return to the state before, whatever the edges say; the data stays."""
        if self._refuses():
            return False
        place, flow = self._record.place, self._active()
        # States that were removed since are skipped.
        history = () if flow is None else tuple(each for each in place.history if flow.declares(each))
        if flow is None or not history:
            return self._invalid(place.flow if flow else None, place.state, None)
        self._enter(place.flow, history[-1], place.revision or flow.revision, history[:-1], place.stack)
        return True

    def push_flow(self, flow: object, data: Mapping[Any, Any] | None = None, *, into: str | None = None) -> Any:
        """Begin another flow inside the active one, which waits with its state and data until ``pop_flow``.

        The inner flow has data of its own. Its result is put into the field ``into`` of the outer data.
        """
        inner = self._fsm.flows.find(flow)
        first = inner.first_state()
        _check_mapping("push_flow", data)
        if self._refuses():
            return False
        record, active = self._record, self._active()
        place = record.place
        if active is None:
            return self._invalid(None, place.state, inner.name)
        if len(place.stack) >= NESTED:
            raise UsageError(f"flows can wait for each other {NESTED} deep; end one with pop_flow() first")
        if inner.data is not None:
            typed.check_fields(inner.name, inner.data, data or {})
        waiting = [place.flow, place.state, place.revision, list(place.history), record.data, into]
        self._enter(inner.name, first, inner.revision, (), (*place.stack, waiting))
        record.data = dict(data or {})
        return True

    def pop_flow(self, result: Any = None) -> Any:
        """End the inner flow, and go on in the one that waits for it, where it was."""
        if self._refuses():
            return False
        place = self._record.place
        if not place.stack:
            problem = f"no flow waits outside of {place.flow!r}; pop_flow() ends what push_flow() began"
            return self._invalid(place.flow, place.state, None, problem=problem if place.flow else None)
        flow, state, revision, history, data, into = place.stack[-1]
        self._enter(flow, state, revision, tuple(history), place.stack[:-1])
        # A copy, because a change of a loaded value would not be seen as a change.
        self._record.data = copy.deepcopy(data)
        self.result = result
        if into is not None:
            self.update_data({into: result})
        return True

    def clear_flow(self) -> None:
        """Leave the conversation: the record is removed. Safe when nothing is active."""
        if type(self._record) is NoRecord and not self._record.data:
            return
        if not self._refuses():
            if self._record.place.flow is not None:
                self._enter(None, None, None)
            self._record.delete()

    # Data

    def update_data(self, changes: Mapping[Any, Any] | None = None, /, **fields: Any) -> dict[Any, Any]:
        """Merge fields into the data, and return it."""
        _check_mapping("update_data", changes)
        merged = {**(changes or {}), **fields}
        if not self._refuses():
            self._check(merged)
            self._record.data.update(merged)
        return self.data

    def set_data(self, data: Mapping[Any, Any]) -> None:
        """Replace the data."""
        _check_mapping("set_data", data, optional=False)
        if not self._refuses():
            self._check(data)
            self._record.data = dict(data)

    async def save(self) -> None:
        """Write now and go on holding the conversation. Only the end of the block marks the update handled."""
        if type(self._record) is NoRecord and not self._record.data:
            return
        if not self._refuses() and await write(self._fsm, self, self._record, keep=True):
            self.saved = True

    # Answering. Collected, and given back by the Router.

    def answer(self, text: str, **params: Any) -> None:
        """Send a message to where the update came from, or, of a timer, to where the conversation was last."""
        update = self.update
        if update.raw is not None:
            where = keys.answer_to(update)
        else:
            # A timer, or a conversation with key=.
            where = self._record.place.where or keys.answer_to_key(self._fsm.key, self.key)
        if not where:
            raise UsageError("this update has no chat to answer in; say where with call('sendMessage', chat_id=...)")
        self.call("sendMessage", **{**keys.params_of(where), "text": text, **params})

    def answer_callback(self, text: str | None = None, **params: Any) -> None:
        """Answer a pressed button, which ends its waiting animation."""
        pressed = self.update.callback_id
        if pressed is None:
            raise UsageError("answer_callback() is for a pressed button; this update is none: use answer()")
        said = {} if text is None else {"text": text}
        self.call("answerCallbackQuery", **{"callback_query_id": pressed, **said, **params})

    def call(self, method: str, **params: Any) -> None:
        """Any call of the Bot API."""
        self._collected().append({"method": method, **params})

    # For the machine

    def no_key(self) -> NoKeyError:
        """Return the error for a change where the update has no key."""
        return NoKeyError(self.update.kind, None if self._record.key_given else keys.name_of(self._fsm.key))

    def already_handled(self) -> DuplicateUpdate:
        """Return the error for a change where the update was handled before."""
        return DuplicateUpdate(self._record.address.text, "" if self.update_id is None else self.update_id)

    def _refuses(self) -> bool:
        """Raise if nothing can be changed here, or return ``True`` if ``on_missing_key`` says not to raise."""
        record = self._record
        if record is CLOSED:
            raise ContextClosed
        if self.duplicate:
            raise self.already_handled()
        return type(record) is NoRecord and not self._fsm.missing_key.refuse(self.no_key())

    def _active(self) -> FlowDescription | None:
        """Return the active flow, or ``None`` if there is none or it is not declared here."""
        flow = self._record.place.flow
        return None if flow is None else self._fsm.flows.get(flow)

    def _enter(
        self,
        flow: str | None,
        state: str | None,
        revision: int | None,
        history: tuple[str, ...] = (),
        stack: tuple[Any, ...] = (),
    ) -> None:
        record = self._record
        left_flow, left_state, _, _, _, where, times, expired = record.place
        if state is not None:
            # The codec takes exact types only, and a declared state is a StateName.
            state = str.__str__(state)
        self.moves.append((left_flow, left_state, flow, state))
        self.entered = True
        record.place = tuple.__new__(Place, (flow, state, revision, history, stack, where, times, expired))

    def _check(self, fields: Mapping[Any, Any]) -> None:
        flow = self._active()
        if flow is not None and flow.data is not None:
            typed.check_fields(flow.name, flow.data, fields)

    def _invalid(self, flow: str | None, from_: str | None, to: str | None, **details: Any) -> Any:
        return self._fsm.transitions.refuse(self, TransitionError(flow, from_, to, **details))

    def _collected(self) -> list[dict[str, Any]]:
        if self._record is CLOSED:
            raise ContextClosed
        if self._calls is None:
            raise UsageError("calls are collected by a Router; here, send the message yourself")
        return self._calls


def _check_mapping(method: str, given: object, *, optional: bool = True) -> None:
    if not isinstance(given, Mapping) and not (optional and given is None):
        raise InvalidOption(f"{method}() takes a dict of fields, got {type(given).__name__}")


Handler = Callable[[Context], Any]
