"""Events of conversations, for logs, metrics and tracing."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from stepwell.errors import InvalidOption
from stepwell.fsm.base import Machine
from stepwell.fsm.update import Update
from stepwell.record import Address

__all__ = [
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
    "add_subscriber",
    "emit",
    "subscribe",
    "subscribers",
]

logger: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FSMEvent:
    """The base of all events."""

    #: The ``FSM``.
    fsm: Machine = field(repr=False)
    #: The bot's name.
    bot: str
    #: The key of the conversation, and its address in the storage; ``None`` if the update has no key.
    key: Any = None
    address: Address | None = None
    #: When it happened, in seconds since 1970.
    at: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineReady(FSMEvent):
    """The storage is open, and the bot is initialised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReceived(FSMEvent):
    """An update was received. Its record is not claimed yet."""

    update: Update
    update_id: int | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateReceived(FSMEvent):
    """An update was received that was handled before."""

    update: Update
    update_id: int | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerStarted(FSMEvent):
    """The record is claimed, and the handler runs next."""

    update: Update
    #: Seconds from the receipt of the update until its record was claimed.
    waited: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerEnded(FSMEvent):
    """The handler has returned or raised. Hooks and the commit follow."""

    update: Update
    error: BaseException | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateHandled(FSMEvent):
    """The last event of an update: its changes are committed, or it was a duplicate, or it has failed."""

    update: Update
    #: Seconds since the update was received.
    duration: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerFailed(FSMEvent):
    """The claim, the handler, a hook or the commit raised. Nothing was written since the last ``save()``."""

    update: Update
    error: BaseException
    #: Seconds since the update was received.
    duration: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEntered(FSMEvent):
    """A conversation has moved, and the move is committed. It has ended if ``flow`` is ``None``."""

    from_flow: str | None
    from_state: str | None
    flow: str | None
    state: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(FSMEvent):
    """A record was written or removed."""

    #: Seconds since the record was claimed.
    duration: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired(FSMEvent):
    """The timeout of a state was applied, or it failed and will be retried."""

    #: The flow and the state that timed out.
    flow: str | None
    state: str | None
    duration: float
    error: BaseException | None = None
    #: Seconds between the end of the timeout and the claim of the record.
    late: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationExpired(FSMEvent):
    """A conversation has expired. With ``on_expired``, one event for each call of it."""

    flow: str | None
    state: str | None
    #: Seconds that ``on_expired`` took.
    duration: float
    #: The error of ``on_expired``, which will be called again.
    error: BaseException | None = None


FSMSubscriber: TypeAlias = Callable[[FSMEvent], object]

#: The subscribers to all machines of the process.
subscribers: list[FSMSubscriber] = []


def subscribe(callback: FSMSubscriber) -> Callable[[], None]:
    """Call ``callback(event)`` for every event of every machine of the process. Return a function that unsubscribes.

    ``FSM.subscribe`` does the same for one machine.
    """
    return add_subscriber(subscribers, callback)


def add_subscriber(to: list[FSMSubscriber], callback: FSMSubscriber) -> Callable[[], None]:
    """Add a callback to a list of subscribers. Return a function that removes it."""
    if not callable(callback):
        raise InvalidOption(f"subscribe() takes a function of the event, got {callback!r}")
    if any(map(inspect.iscoroutinefunction, (callback, type(callback).__call__))):
        raise InvalidOption(f"{callback!r} is an async def, which is not supported; pass a def that fills a queue")
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
