"""Errors of conversations."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping

from stepwell.errors.base import StepwellError, UsageError


class ContextClosed(UsageError):
    """A conversation's context is used after its block: what it would change is committed already."""

    def __init__(self) -> None:
        super().__init__("this conversation is over; enter a new one with fsm.conversation(...)")


class InvalidFlow(StepwellError, TypeError, ValueError):
    """A flow cannot work as it is written; found when it is defined or registered."""

    def __init__(self, flow: str, problem: str) -> None:
        self.flow, self.problem = flow, problem
        super().__init__(f"flow {flow!r}: {problem}")


class TransitionError(StepwellError, ValueError):
    """A move that the active flow does not declare. Nothing was changed."""

    def __init__(
        self,
        flow: str | None,
        from_: str | None,
        to: str | None,
        *,
        allowed: Iterable[str] = (),
        starting: bool = False,
        problem: str | None = None,
    ) -> None:
        #: The active flow, ``None`` when there is none.
        self.flow = flow
        #: The state left; with ``starting`` the name of the active flow.
        self.from_ = from_
        #: The state asked for; with ``starting`` the name of the flow; ``None`` for a step back.
        self.to = to
        #: The states that may follow ``from_``.
        self.allowed = tuple(allowed)
        #: Another flow was to be started.
        self.starting = starting
        #: What is wrong and what to do, where it is not a missing edge.
        self.problem = problem
        super().__init__(problem or self._message())

    def _message(self) -> str:
        if self.starting:
            return (
                f"flow {self.to!r} cannot start while {self.from_!r} is active; clear_flow() first, "
                "or jump with set_state(state, flow=...)"
            )
        if self.flow is None:
            way = "" if self.to is None else f", so there is no way to {self.to!r}"
            return f"no flow is active{way}; begin with start_flow(...)"
        if self.to is None:
            return f"flow {self.flow!r} has no state before {self.from_!r} to go back to"
        allowed = ", ".join(map(repr, self.allowed)) or "nothing (it is a last state, or not declared)"
        return (
            f"flow {self.flow!r} does not lead from {self.from_!r} to {self.to!r}; allowed is {allowed}; "
            "declare the edge with state(to=[...]), or jump with set_state(...)"
        )


class MigrationError(StepwellError, ValueError):
    """A record of an earlier revision cannot be migrated; it stays as it was."""

    def __init__(self, flow: str, revision: int, problem: str) -> None:
        self.flow, self.revision, self.problem = flow, revision, problem
        super().__init__(
            f"flow {flow!r}: a record of revision {revision} cannot be migrated: {problem}; "
            "it stays as it was: mend migrate(old_revision, state, data) and deploy again"
        )


class UnknownFlowError(StepwellError, LookupError):
    """A flow is named that is not registered here."""

    def __init__(self, flow: str, known: Iterable[str] = ()) -> None:
        self.flow, self.known = flow, tuple(known)
        known_names = ", ".join(map(repr, self.known)) or "none"
        super().__init__(f"flow {flow!r} is not registered (known: {known_names}); add it to FSM(flows=[...])")


class UnknownStateError(StepwellError, LookupError):
    """A stored flow or state is no longer declared, and ``on_unknown_state="raise"`` was chosen."""

    def __init__(self, flow: str | None, state: str | None) -> None:
        self.flow, self.state = flow, state
        super().__init__(
            f"the stored state {state!r} of flow {flow!r} is not declared here; declare it again, "
            'migrate it, or choose on_unknown_state="keep" or "reset"'
        )


class NoKeyError(StepwellError, LookupError):
    """A change was asked for, but the update has no key, so there is no place to keep it."""

    def __init__(self, kind: str | None, strategy: str | None) -> None:
        #: The kind of the update, such as ``"poll"``.
        self.kind = kind
        #: What was asked for a key; ``None`` where ``key=None`` was given by hand.
        self.strategy = strategy
        why = (
            "key=None was given, so nothing can be kept; give"
            if strategy is None
            else f"{strategy} gives no key for this {kind or 'unknown'} update, so nothing can be kept for it; use"
        )
        super().__init__(f'{why} another key=, leave the state alone here, or choose on_missing_key="log" or "ignore"')


class DuplicateUpdate(StepwellError):
    """This update was handled before; its handler must not run again."""

    def __init__(self, place: str, update_id: int | str, calls: list[dict[str, object]] | None = None) -> None:
        self.place, self.update_id = place, update_id
        #: The Bot API calls of the first time, while this is the newest update of its key.
        self.calls = calls or []
        # Python refuses to write very large numbers in decimal.
        large = isinstance(update_id, int) and update_id.bit_length() > 64
        shown = reprlib.repr(hex(update_id) if large else update_id)  # type: ignore[arg-type]
        super().__init__(
            f"update {shown} was already handled for {place}; acknowledge it and do nothing, "
            'or look at the state with on_duplicate="enter"'
        )


class FieldError(StepwellError, TypeError, ValueError):
    """A data field does not fit the ``data=`` of its flow. Nothing was changed."""

    def __init__(self, flow: str, field: object, expected: str, problem: str) -> None:
        self.flow, self.field, self.expected, self.problem = flow, field, expected, problem
        super().__init__(f"flow {flow!r}: field {field!r} must be {expected}: {problem}")


class IncompleteData(StepwellError, ValueError):
    """The data does not make up the type that was asked for."""

    def __init__(self, type_name: str, missing: Iterable[str] = (), wrong: Mapping[str, str] | None = None) -> None:
        #: Required fields that are not there.
        self.missing = tuple(missing)
        #: What is wrong with each field that is there but does not fit.
        self.wrong = dict(wrong or {})
        self.type_name = type_name
        parts = [f"missing {', '.join(map(repr, self.missing))}"] if self.missing else []
        parts += [f"{name!r}: {problem}" for name, problem in self.wrong.items()]
        super().__init__(f"the data does not make up {type_name} yet: {'; '.join(parts)}")
