"""Errors of conversations."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping

from stepwell._secrets import quoted
from stepwell.errors.base import StepwellError, UsageError


class ContextClosed(UsageError):
    """A context was used after its block, when its changes are already committed.

    Example::

        async with fsm.conversation(update) as ctx:
            pass
        with pytest.raises(ContextClosed):
            ctx.start_flow(Registration)
    """

    def __init__(self) -> None:
        super().__init__("this conversation has ended; open a new one with fsm.conversation(...)")


class InvalidFlow(StepwellError, TypeError, ValueError):
    """A declaration of a flow is invalid. Raised when it is defined or registered.

    Example::

        with pytest.raises(InvalidFlow):
            class Order(Flow, name="order"):
                pay = state(to=["payed"])
                default_state = pay
    """

    def __init__(self, flow: str, problem: str) -> None:
        self.flow: str = flow
        self.problem: str = problem
        super().__init__(f"flow {quoted(flow)}: {problem}")


class TransitionError(StepwellError, ValueError):
    """The active flow does not declare this move. Nothing was changed.

    Example::

        async with fsm.conversation(update) as ctx:
            ctx.start_flow(Registration)
            with pytest.raises(TransitionError) as caught:
                ctx.transition("get_name")
        assert caught.value.allowed == ("get_email",)
    """

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
        #: The active flow; ``None`` if no flow is active.
        self.flow: str | None = flow
        #: The present state; with ``starting`` the name of the active flow.
        self.from_: str | None = from_
        #: The requested state; with ``starting`` the name of the requested flow; ``None`` for ``back()``.
        self.to: str | None = to
        #: The states that may follow ``from_``.
        self.allowed: tuple[str, ...] = tuple(allowed)
        #: The move was the start of another flow.
        self.starting: bool = starting
        #: The problem and what to do, if it is not an undeclared move.
        self.problem: str | None = problem
        super().__init__(problem or self._message())

    def _message(self) -> str:
        if self.starting:
            return (
                f"flow {quoted(self.to)} cannot start while {quoted(self.from_)} is active; call clear_flow() first, "
                "or jump with set_state(state, flow=...)"
            )
        if self.flow is None:
            move = "" if self.to is None else f", so the move to {quoted(self.to)} is not possible"
            return f"no flow is active{move}; begin with start_flow(...)"
        if self.to is None:
            return f"flow {quoted(self.flow)} has no state before {quoted(self.from_)} to go back to"
        allowed = ", ".join(map(quoted, self.allowed)) or "no state (it is a last state, or not declared)"
        return (
            f"flow {quoted(self.flow)} does not lead from {quoted(self.from_)} to {quoted(self.to)}; allowed: "
            f"{allowed}; "
            "declare the move with state(to=[...]), or jump with set_state(...)"
        )


class MigrationError(StepwellError, ValueError):
    """A record of an earlier revision could not be migrated. It is unchanged.

    Example::

        try:
            async with fsm.conversation(update) as ctx:
                ctx.update_data(name="Alice")
        except MigrationError as error:
            print("fix migrate() of", error.flow, "for revision", error.revision)
    """

    def __init__(self, flow: str, revision: int, problem: str) -> None:
        self.flow: str = flow
        self.revision: int = revision
        self.problem: str = problem
        super().__init__(
            f"flow {quoted(flow)}: a record of revision {revision} could not be migrated: {problem}; "
            "the record is unchanged: fix migrate(old_revision, state, data) and deploy again"
        )


class UnknownFlowError(StepwellError, LookupError):
    """A flow is not registered with this machine.

    Example::

        async with fsm.conversation(update) as ctx:
            with pytest.raises(UnknownFlowError):
                ctx.start_flow("registratoin")
    """

    def __init__(self, flow: str, known: Iterable[str] = ()) -> None:
        self.flow: str = flow
        self.known: tuple[str, ...] = tuple(known)
        known_names = ", ".join(map(quoted, self.known)) or "none"
        super().__init__(f"flow {quoted(flow)} is not registered (known: {known_names}); add it to FSM(flows=[...])")


class UnknownStateError(StepwellError, LookupError):
    """A stored flow or state is no longer declared, with ``on_unknown_state="raise"``.

    Example::

        fsm = FSM("my_bot", storage=storage, flows=[Registration], on_unknown_state="raise")
        await storage.set_state("my_bot", (42, 42), State("registration", "get_phone"))
        with pytest.raises(UnknownStateError):
            async with fsm.conversation(update) as ctx:
                pass
    """

    def __init__(self, flow: str | None, state: str | None) -> None:
        self.flow: str | None = flow
        self.state: str | None = state
        super().__init__(
            f"the stored state {quoted(state)} of flow {quoted(flow)} is not declared here; declare it again, "
            'migrate it, or use on_unknown_state="keep" or "reset"'
        )


class NoKeyError(StepwellError, LookupError):
    """The update has no key, so a change cannot be stored.

    Example::

        async with fsm.conversation({"update_id": 7, "poll": {"id": "1"}}) as ctx:
            with pytest.raises(NoKeyError):
                ctx.start_flow(Registration)
    """

    def __init__(self, kind: str | None, strategy: str | None) -> None:
        #: The kind of the update, such as ``"poll"``.
        self.kind: str | None = kind
        #: The key strategy that returned no key; ``None`` if ``key=None`` was passed.
        self.strategy: str | None = strategy
        cause = (
            "key=None was passed"
            if strategy is None
            else f"{strategy} returned no key for this {kind or 'unknown'} update"
        )
        super().__init__(
            f"{cause}, so nothing can be stored; use another key=, do not change the state here, "
            'or use on_missing_key="log" or "ignore"'
        )


class DuplicateUpdate(StepwellError):
    """This update was handled before, so its handler must not run again.

    Example::

        async with fsm.conversation(update) as ctx:
            ctx.start_flow(Registration)
        with pytest.raises(DuplicateUpdate):
            async with fsm.conversation(update) as ctx:
                pass
    """

    def __init__(self, place: str, update_id: int | str, calls: list[dict[str, object]] | None = None) -> None:
        #: The address of the conversation as text.
        self.place: str = place
        self.update_id: int | str = update_id
        #: The Bot API calls that answered it, if this is the newest update of its key.
        self.calls: list[dict[str, object]] = calls or []
        # Python raises ValueError for the decimal form of a very large int.
        large = isinstance(update_id, int) and update_id.bit_length() > 64
        shown = reprlib.repr(hex(update_id) if large else update_id)  # type: ignore[arg-type]
        super().__init__(
            f"update {shown} was already handled for {place}; acknowledge it and do nothing, "
            'or read the state with on_duplicate="enter"'
        )


class FieldError(StepwellError, TypeError, ValueError):
    """A field does not fit the ``data=`` of its flow. Nothing was changed.

    Example::

        class Typed(Flow, name="typed", data=Person):
            ask = state(to=[])
            default_state = ask

        fsm = FSM("my_bot", storage="memory://", flows=[Typed])
        async with fsm.conversation(update) as ctx:
            ctx.start_flow(Typed)
            with pytest.raises(FieldError):
                ctx.update_data(name=42)
    """

    def __init__(self, flow: str, field: object, expected: str, problem: str) -> None:
        self.flow: str = flow
        self.field: object = field
        self.expected: str = expected
        self.problem: str = problem
        super().__init__(f"flow {quoted(flow)}: field {quoted(field)} must be {expected}: {problem}")


class IncompleteData(StepwellError, ValueError):
    """The data has missing or wrong fields for the type given to ``data_as()``.

    Example::

        async with fsm.conversation(update) as ctx:
            ctx.start_flow(Registration)
            ctx.update_data(name="Alice")
            with pytest.raises(IncompleteData):
                ctx.data_as(Person)
    """

    def __init__(self, type_name: str, missing: Iterable[str] = (), wrong: Mapping[str, str] | None = None) -> None:
        #: Required fields that are missing.
        self.missing: tuple[str, ...] = tuple(missing)
        #: The problem of each field that does not fit.
        self.wrong: dict[str, str] = dict(wrong or {})
        self.type_name: str = type_name
        parts = [f"missing {', '.join(map(quoted, self.missing))}"] if self.missing else []
        parts += [f"{quoted(name)}: {problem}" for name, problem in self.wrong.items()]
        super().__init__(f"the data is not a complete {type_name} yet: {'; '.join(parts)}")
