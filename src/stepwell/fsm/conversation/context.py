"""The context: a handler's view of its conversation."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from stepwell._secrets import quoted
from stepwell.codec import values
from stepwell.codec.json import Raw, replaced
from stepwell.errors import ContextClosed, DuplicateUpdate, InvalidOption, NoKeyError, TransitionError, UsageError
from stepwell.fsm import keys
from stepwell.fsm.base import Machine
from stepwell.fsm.bot import REPEAT, BotMethods
from stepwell.fsm.conversation.extension import Waiting, end, extension_of, keep
from stepwell.fsm.conversation.framework_objects import PLAIN, as_plain
from stepwell.fsm.conversation.history import HISTORY, entry_times, packed_times, with_entry
from stepwell.fsm.conversation.missing_names import missing_name
from stepwell.fsm.conversation.parameters import PARAMETERS, check_parameters
from stepwell.fsm.conversation.stream import stream
from stepwell.fsm.flows import typed
from stepwell.fsm.flows.description import FlowDescription
from stepwell.fsm.update import Update
from stepwell.record import NO_HEAD, NOWHERE, Place
from stepwell.slot import Slot
from stepwell.texts import Writer

__all__ = ["CLOSED", "Context", "Handler", "NoRecord"]

#: One move: the flow and state that were left, the flow and state that were entered.
Move: TypeAlias = tuple[str | None, str | None, str | None, str | None]
#: How many flows can wait for each other.
NESTED = 8

T = TypeVar("T")
if TYPE_CHECKING:
    # Type checkers know this module without the package. Defaults of type variables are in typing since Python 3.13.
    import typing_extensions

    Data = typing_extensions.TypeVar("Data", bound=Mapping[Any, Any], default=dict[str, Any])
else:
    Data = TypeVar("Data")


class NoRecord:
    """Replaces the record if the update has no key: empty, and never stored."""

    __slots__ = ("data", "key_given")

    head = NO_HEAD

    def __init__(self, *, key_given: bool) -> None:
        #: ``key=None`` was passed, and no key strategy was called.
        self.key_given: bool = key_given
        self.data: dict[Any, Any] = {}


class _Closed:
    """Replaces the record after the block."""

    def __getattr__(self, name: str) -> Any:
        raise ContextClosed


CLOSED = _Closed()


class Context(Generic[Data]):
    """One conversation while one update is handled.

    Changes are made in memory, and written in one commit when the block ends. If the block raises, nothing is written.

    ``Context[RegistrationData]``, with a ``TypedDict``, gives type checkers the types of the fields in ``ctx.data``.
    A plain ``Context`` has ``dict[str, Any]``. For a flow with another ``data=`` type, use ``ctx.data_as(type)``.

    Example::

        @router.on(fsm_state(Registration.get_name), text())
        async def get_name(ctx: Context):
            ctx.update_data(name=ctx.text)
            ctx.transition("get_email")
            ctx.answer(f"Got it, {ctx.text}! What's your email?")
    """

    __slots__ = (
        "_album", "_calls", "_fsm", "_profile", "_record", "_streams", "began", "duplicate", "entered", "key", "match",
        "moves", "moves_emitted", "moves_hooked", "moves_saved", "result", "saved", "started", "update", "update_id",
    )  # fmt: skip

    def __init__(self, fsm: Machine, update: Update, key: Any, record: Slot | NoRecord, *, collects: bool) -> None:
        self._fsm = fsm
        self._record: Any = record
        self._calls: list[dict[str, Any]] | None = [] if collects else None
        #: The update; its ``raw`` is ``None`` if only a ``key=`` was given.
        self.update: Update = update
        #: The id that duplicates are recognised by.
        self.update_id: int | str | None = None
        #: The key of the conversation; ``None`` if the update has no key.
        self.key: Any = key
        #: This update was handled before (only with ``on_duplicate="enter"``); changes are refused.
        self.duplicate: bool = False
        #: The match of the regex in the filter that chose this handler.
        self.match: re.Match[str] | None = None
        #: The result that the flow which ended last gave to ``pop_flow``.
        self.result: Any = None
        #: ``save()`` has written something.
        self.saved: bool = False
        # A state was entered since the last write.
        self.entered: bool = False
        # A flow was started.
        self.began: bool = False
        # When the record was claimed, on the monotonic clock.
        self.started: float = monotonic()
        # All moves, for the hooks; how many of them were emitted as events, had their hooks run, and were saved.
        self.moves: list[Move] = []
        self.moves_emitted: int = 0
        self.moves_hooked: int = 0
        self.moves_saved: int = 0
        # The messages of an album, if it is the update.
        self._album: list[Any] | None = None
        # The decoded profile, once it was read.
        self._profile: dict[Any, Any] | None = None
        # The number of streams that were begun.
        self._streams = 0

    if not TYPE_CHECKING:
        # Type checkers would accept any name.
        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or hasattr(type(self), name):
                # A property has raised an AttributeError: raise it again.
                return object.__getattribute__(self, name)
            raise missing_name(name, dir(type(self)))

    # What the handler sees

    @property
    def data(self) -> Data:
        """The data, a dict. It may be changed in place."""
        data: Data = self._record.data
        return data

    @property
    def profile(self) -> dict[Any, Any]:
        """Data of this key that outlives flows. Change it in place.

        ``start_flow``, ``clear_flow`` and the expiry of a conversation leave it; ``fsm.forget`` deletes it.
        """
        if self._profile is None:
            stored = extension_of(self._record).profile
            self._profile = values.decode(stored) if stored else {}
        return self._profile

    def data_as(self, kind: type[T]) -> T:
        """Return the data as one object of a type. Raises ``IncompleteData`` if fields are missing or wrong."""
        return typed.build(kind, self._record.data)

    @property
    def text(self) -> str | None:
        """The text of the message."""
        return self.update.text

    @property
    def album(self) -> list[Any]:
        """The messages of the album that is handled, in order; empty for any other update. See the filter ``album``.

        A message of an album that was not collected, as in a router without that filter, is the only one.
        """
        if self._album is None:
            return [] if self.update.media_group_id is None else [self.update.event]
        return self._album

    @property
    def args(self) -> str:
        """The text after a command: ``"hello"`` for ``/start hello``."""
        command = self.update.command
        return command.args if command is not None else ""

    # Moves: each returns True, or the result of on_invalid_transition

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

    # Data

    def update_data(self, changes: Mapping[Any, Any] | None = None, /, **fields: Any) -> Data:
        """Merge fields into the data, and return the data."""
        if changes is not None:
            check_mapping("update_data", changes)
            fields = {**changes, **fields}
        if not self._refuses():
            self._check(fields)
            self._record.data.update(fields)
        return self.data

    def set_data(self, data: Mapping[Any, Any]) -> None:
        """Replace the data."""
        check_mapping("set_data", data, optional=False)
        if not self._refuses():
            self._check(data)
            self._record.data = dict(data)

    async def save(self) -> None:
        """Write now, and keep the claim. The update counts as handled only when the block ends."""
        if type(self._record) is NoRecord and not self._record.data:
            return
        if not self._refuses() and await self._fsm.write(self, self._record, keep=True):
            self.saved = True
            self.moves_saved = len(self.moves)

    def reset(self) -> None:
        """Forget the calls and moves since the last ``save()``, after a rollback of the record."""
        if self._calls is not None:
            self._calls.clear()
        self._profile = None
        self._streams = 0
        del self.moves[self.moves_saved :]
        self.moves_emitted = min(self.moves_emitted, self.moves_saved)
        self.moves_hooked = 0
        self.entered = self.began = False
        self.result = None

    # Calls of the Bot API, which are collected, and returned by the Router

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The Bot API calls collected so far."""
        return self._collected()

    def answer(self, text: str, *, toast: str | None = None, **params: Any) -> None:
        """Send a message to the chat of the update. A timer answers in the last chat of the conversation.

        ``toast``: also answer the pressed button with this text, which is shown over the chat for some seconds.

        Raises ``UsageError`` if the update has no chat, or no button was pressed for the toast.
        """
        where = self._where("answer")
        if not isinstance(text, str):
            raise _no_text("answer", text)
        if toast is not None:
            self.answer_callback(toast)
        self.call("sendMessage", **{**keys.params_of(where), "text": text, **params})

    def answer_callback(self, text: str | None = None, **params: Any) -> None:
        """Answer a pressed button, which stops its loading animation and may show a text.

        Without it the runner of the bot stops the animation. Telegram takes one answer: the runner gives it after 3
        seconds, or at once if the press has to wait for another update, and the text is then not shown.

        Raises ``UsageError`` if the update is not a callback query.
        """
        callback_id = self.update.callback_id
        if callback_id is None:
            raise UsageError("answer_callback() is for callback queries, and this update is not one; use answer()")
        if text is not None and not isinstance(text, str):
            raise _no_text("answer_callback", text)
        shown = {} if text is None else {"text": text}
        self.call("answerCallbackQuery", **{"callback_query_id": callback_id, **shown, **params})

    def edit(self, text: str, *, toast: str | None = None, **params: Any) -> None:
        """Edit the message whose button was pressed. Its buttons are removed, unless ``reply_markup=`` is given.

        ``toast``: also answer the press with this text, which is shown over the chat for some seconds.

        Raises ``UsageError`` if no button was pressed.
        """
        update = self.update
        if update.inline_message_id is not None:
            message: dict[str, Any] = {"inline_message_id": update.inline_message_id}
        elif update.callback_id is not None and update.chat is not None and update.message_id is not None:
            message = {"chat_id": update.chat.id, "message_id": update.message_id}
        else:
            raise UsageError(
                "edit() changes the message whose button was pressed, and this update has none; use answer(), or "
                "call('editMessageText', chat_id=..., message_id=..., text=...)"
            )
        if not isinstance(text, str):
            raise _no_text("edit", text)
        if toast is not None:
            self.answer_callback(toast)
        if update.business_connection_id is not None:
            message["business_connection_id"] = update.business_connection_id
        self.call("editMessageText", **{**message, "text": text, **params})

    def call(self, method: str, **params: Any) -> None:
        """Call any method of the Bot API. Raises ``InvalidOption`` for a parameter that looks misspelled.

        Keyboards and other objects of aiogram, python-telegram-bot and telebot are accepted like the Bot API's dicts.
        """
        known = PARAMETERS.get(method)
        # No Python call in the usual case.
        if known is not None and not known.issuperset(params):
            check_parameters(method, params)
        for name, value in params.items():
            if type(value) not in PLAIN:
                params[name] = as_plain(value)
        self._collected().append({"method": method, **params})

    # Calls whose results the handler needs, which are made at once

    @property
    def bot(self) -> BotMethods:
        """The client of the bot: ``message = await ctx.bot.send_message(chat_id=42, text="Hello")``.

        Its calls are made at once, and again if the handler runs again. Raises ``UsageError`` if the bot has no client.
        """
        client = self._fsm.client
        if client is None:
            raise UsageError(
                "ctx.bot: this bot has no client; run it with run_polling(), webhook() or stepwell run, or pass "
                "Router(fsm, client=BotClient(token))"
            )
        return client

    def typing(self, action: str = "typing", *, every: float = REPEAT) -> AbstractAsyncContextManager[None]:
        """Show in the chat of the update that the bot is typing, until the block ends: ``async with ctx.typing():``.

        ``action`` is one of ``sendChatAction``, such as ``"upload_photo"``.

        Raises ``UsageError`` if the update has no chat, or the bot has no client.
        """
        return self.bot.typing(action=action, every=every, **keys.params_of(self._where("typing")))

    def stream(self, **params: Any) -> AbstractAsyncContextManager[Writer]:
        """Answer with a text that the user sees grow while the block writes it::

            @router.on(text())
            async def ask(ctx):
                async with ctx.stream() as out:
                    async for token in model(ctx.text):
                        out.write(token)

        ``write`` never waits. The complete text is an answer of this handler: it is stored and sent like those of
        ``answer``. ``params`` are parameters of ``sendMessage``. If the block raises, there is no answer. A handler
        that runs again continues with the same message. A bot without a client shows nothing before the end.

        Raises ``UsageError`` if the update has no chat.
        """
        where = keys.params_of(self._where("stream"))
        self._streams += 1
        what = None if self.update_id is None else (self._fsm.bot, self.update_id, self._streams)
        return stream(self._fsm, self._collected(), {**where, **params}, what)

    # For the modules of this package

    def no_key(self) -> NoKeyError:
        """Return the error for a change if the update has no key."""
        return NoKeyError(self.update.kind, None if self._record.key_given else keys.name_of(self._fsm.key))

    def already_handled(self) -> DuplicateUpdate:
        """Return the error for a change if the update was handled before."""
        return DuplicateUpdate(self._record.address.text, "" if self.update_id is None else self.update_id)

    def _where(self, method: str) -> keys.Where:
        """Return the chat of the update, for a method that needs it."""
        update = self.update
        if update.raw is not None:
            where = keys.answer_to(update)
        else:
            # A timer, or a conversation with key=.
            where = extension_of(self._record).where or keys.answer_to_key(self._fsm.key, self.key)
        if not where:
            instead = "call('sendMessage', chat_id=...)" if method == "answer" else f"bot.{method}(chat_id)"
            raise UsageError(f"this update has no chat to {method} in; use {instead}")
        return where

    def _refuses(self) -> bool:
        """Return whether changes are ignored because the update has no key; raise if they are refused."""
        record = self._record
        if record is CLOSED:
            raise ContextClosed
        if self.duplicate:
            raise self.already_handled()
        return type(record) is NoRecord and not self._fsm.missing_key.refuse(self.no_key())

    def _collected(self) -> list[dict[str, Any]]:
        if self._record is CLOSED:
            raise ContextClosed
        if self._calls is None:
            raise UsageError("only a Router collects calls; send the message with your own client here")
        return self._calls

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


#: A function of the context, ``def`` or ``async def``.
Handler: TypeAlias = Callable[[Context[Any]], Any]


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


def _no_text(method: str, given: object) -> InvalidOption:
    if given is None:
        return InvalidOption(f"{method}() got None instead of a text; does the function that makes the text return it?")
    return InvalidOption(f"{method}() takes a text, got {type(given).__name__}; write {method}(str(...))")
