"""Events of conversations, for logs, metrics and tracing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from stepwell.fsm.base import Machine
from stepwell.fsm.update import Update
from stepwell.options import check_function, check_not_async
from stepwell.record import Address

__all__ = [
    "AnswerRefused",
    "Committed",
    "ConversationExpired",
    "DuplicateReceived",
    "FSMEvent",
    "FSMSubscriber",
    "HandlerEnded",
    "HandlerFailed",
    "HandlerStarted",
    "MachineReady",
    "StateEntered",
    "TimerFired",
    "UpdateHandled",
    "UpdateReceived",
    "UpdateSetAside",
    "add_subscriber",
    "emit",
    "subscribe",
    "subscribers",
]

logger: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FSMEvent:
    """The base of all events.

    Example::

        def show(event: FSMEvent) -> None:
            print(event.bot, event.key, type(event).__name__)

        fsm = FSM("my_bot", storage="memory://", flows=[Registration])
        unsubscribe = fsm.subscribe(show)
    """

    #: The ``FSM``.
    fsm: Machine = field(repr=False)
    #: The bot's name.
    bot: str
    #: The key of the conversation, and its address in the storage; ``None`` if the update has no key. If the key cannot
    #: be encoded, only the address is ``None``.
    key: Any = None
    address: Address | None = None
    #: When it happened, in seconds since 1970.
    at: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineReady(FSMEvent):
    """The storage is open, and the bot is initialised.

    Example::

        def ready(event):
            if isinstance(event, MachineReady):
                print(event.bot, "is ready")

        fsm.subscribe(ready)
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReceived(FSMEvent):
    """An update was received. Its record is not claimed yet.

    Example::

        def show(event):
            if isinstance(event, UpdateReceived):
                print(event.update_id, event.update.text)

        fsm.subscribe(show)
    """

    update: Update
    update_id: int | str | None
    #: More than 1 if polling or a webhook handles the update again, as after an outage.
    attempt: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateReceived(FSMEvent):
    """An update was received that was handled before.

    Example::

        def show(event):
            if isinstance(event, DuplicateReceived):
                print("received again:", event.update_id)

        fsm.subscribe(show)
    """

    update: Update
    update_id: int | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerStarted(FSMEvent):
    """The record is claimed, and the handler runs next.

    Example::

        def warn(event):
            if isinstance(event, HandlerStarted) and event.waited > 1:
                print(event.key, "waited", event.waited, "seconds for an earlier update")

        fsm.subscribe(warn)
    """

    update: Update
    #: Seconds from the receipt of the update until its record was claimed.
    waited: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerEnded(FSMEvent):
    """The handler has returned or raised. Hooks and the commit follow.

    Example::

        def show(event):
            if isinstance(event, HandlerEnded) and event.error is None:
                print(event.key, "is handled, and not committed yet")

        fsm.subscribe(show)
    """

    update: Update
    error: BaseException | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateHandled(FSMEvent):
    """The last event of an update: its changes are committed, or it was a duplicate, or it has failed.

    Example::

        def measure(event):
            if isinstance(event, UpdateHandled):
                print(event.key, event.duration)

        fsm.subscribe(measure)
    """

    update: Update
    #: Seconds since the update was received.
    duration: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerFailed(FSMEvent):
    """The claim, the handler, a hook or the commit raised. Nothing was written since the last ``save()``.

    Example::

        def report(event):
            if isinstance(event, HandlerFailed) and not event.again:
                print(event.key, repr(event.error))

        fsm.subscribe(report)
    """

    update: Update
    error: BaseException
    #: Seconds since the update was received.
    duration: float
    #: Another attempt follows: of a handler with ``attempts``, or of polling or a webhook, as after an outage.
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEntered(FSMEvent):
    """A conversation has moved, and the move is committed. It has ended if ``flow`` is ``None``.

    Example::

        def count(event):
            if isinstance(event, StateEntered) and event.flow is None:
                print("ended", event.from_flow, event.from_state)

        fsm = FSM("my_bot", storage="memory://", flows=[Registration])
        fsm.subscribe(count)
    """

    from_flow: str | None
    from_state: str | None
    flow: str | None
    state: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(FSMEvent):
    """A record was written or removed.

    Example::

        def warn(event):
            if isinstance(event, Committed) and event.duration > 1:
                print("a slow commit:", event.key)

        fsm.subscribe(warn)
    """

    #: Seconds since the record was claimed.
    duration: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired(FSMEvent):
    """The timeout of a state was applied, or it failed and will be retried.

    Example::

        def warn(event):
            if isinstance(event, TimerFired) and event.late > 60:
                print(event.key, event.state, "timed out", event.late, "seconds late")

        fsm.subscribe(warn)
    """

    #: The flow and the state that timed out.
    flow: str | None
    state: str | None
    duration: float
    error: BaseException | None = None
    #: Seconds between the end of the timeout and the claim of the record.
    late: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationExpired(FSMEvent):
    """A conversation has expired. With ``on_expired``, one event for each call of it.

    Example::

        def show(event):
            if isinstance(event, ConversationExpired):
                print(event.key, "expired in", event.flow, event.state)

        fsm.subscribe(show)
    """

    flow: str | None
    state: str | None
    #: Seconds that ``on_expired`` took.
    duration: float
    #: The error of ``on_expired``, which will be called again.
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRefused(FSMEvent):
    """Telegram refused a call of a handler, timer or job for good, or the call could not be made. It is not repeated.

    Emitted by ``run_polling``, webhooks and a ``Sender``. The call itself is not in the event; ``on_send_error`` gets
    it, and ``stepwell outbox --refused`` lists the calls of the last days.

    Example::

        def report(event):
            if isinstance(event, AnswerRefused):
                print(event.chat, event.update_id, event.handler, event.method, event.code, event.description)

        fsm.subscribe(report)
    """

    #: The update and its id; ``None`` for a timer or a job.
    update: Update | None
    update_id: int | str | None
    #: The handler, as ``module.function``; ``None`` for a timer or a job, and for an update that was handled before.
    handler: str | None
    #: The method of the Bot API, such as ``"sendMessage"``.
    method: str | None
    #: The ``chat_id`` of the call, else the chat of the update.
    chat: int | str | None
    #: The error code of the Bot API; ``None`` if the call could not be made, as with a missing file.
    code: int | None
    description: str
    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSetAside(FSMEvent):
    """An update was set aside: it cannot be read, or its process has ended each time it was handled.

    Emitted by ``run_polling`` and webhooks. ``stepwell inbox`` lists these updates.

    Example::

        def report(event):
            if isinstance(event, UpdateSetAside):
                print(event.update_id, event.chat, event.why)

        fsm.subscribe(report)
    """

    #: ``None`` if it cannot be read.
    update_id: int | None
    chat: int | None
    why: str
    #: How often it was handled.
    attempts: int


FSMSubscriber: TypeAlias = Callable[[FSMEvent], object]

#: The subscribers to all machines of the process.
subscribers: list[FSMSubscriber] = []


def subscribe(callback: FSMSubscriber) -> Callable[[], None]:
    """Call ``callback(event)`` for every event of every machine of the process. Return a function that unsubscribes.

    ``FSM.subscribe`` does the same for one machine.

    Example::

        from stepwell.fsm import subscribe

        end = subscribe(lambda event: print(event.bot, type(event).__name__))
        end()
    """
    return add_subscriber(subscribers, callback)


def add_subscriber(to: list[FSMSubscriber], callback: FSMSubscriber) -> Callable[[], None]:
    """Add a callback to a list of subscribers. Return a function that removes it."""
    check_function(callback, "subscribe() takes a function of the event, got {}")
    check_not_async(callback, "{} is an async def, which is not supported; pass a def that fills a queue")
    to.append(callback)

    def unsubscribe() -> None:
        if callback in to:
            to.remove(callback)

    return unsubscribe


def emit(kind: type[FSMEvent], fsm: Machine, key: Any, address: Address | None, **fields: Any) -> None:
    """Make an event, and call the subscribers of its machine and of the process. Their errors are logged."""
    event = kind(fsm=fsm, bot=fsm.bot, key=key, address=address, **fields)
    for subscriber in (*fsm.subscribers, *subscribers):
        try:
            subscriber(event)
        except Exception:
            logger.exception("a subscriber failed on %s", kind.__name__)
