"""Events of turns, for metrics and tracing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from stepwell.engine import Address

__all__ = ["MessageTaken", "TurnEnded", "TurnEvent", "TurnStarted", "TurnSubscriber", "call_subscribers", "subscribe"]

logger: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEvent:
    """Something that has happened in a conversation.

    Example::

        turns.subscribe(lambda event: print(type(event).__name__, event.conversation))
    """

    bot: str
    conversation: Any
    address: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTaken(TurnEvent):
    """An update was read.

    Example::

        turns.subscribe(lambda event: isinstance(event, MessageTaken) and print(event.outcome))
    """

    #: ``"taken"``, ``"edited"``, ``"known"``, ``"full"``, ``"busy"``, or ``"answer"``.
    outcome: str
    #: How many messages wait now.
    waiting: int
    #: The id of the update.
    update: int | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted(TurnEvent):
    """An attempt of a turn has begun.

    Example::

        turns.subscribe(lambda event: isinstance(event, TurnStarted) and print(event.waited))
    """

    turn: str
    attempt: int
    messages: int
    #: The ids of their updates.
    updates: tuple[int | str, ...]
    #: Seconds since the first message was taken.
    waited: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded(TurnEvent):
    """A turn has ended, and its end is stored.

    Example::

        turns.subscribe(lambda event: isinstance(event, TurnEnded) and print(event.how, event.seconds))
    """

    turn: str
    attempt: int
    messages: int
    #: ``"refused"``: nothing was left of its budget.
    how: Literal["answered", "stopped", "failed", "refused"]
    #: Seconds since its first attempt has begun.
    seconds: float
    error: str | None = None


TurnSubscriber: TypeAlias = Callable[[TurnEvent], object]
#: Called with the events of all turns in this process.
everywhere: list[TurnSubscriber] = []


def subscribe(callback: TurnSubscriber) -> Callable[[], None]:
    """Call ``callback(event)`` for every event of all turns in this process. Return a function that unsubscribes.

    Example::

        from stepwell.turns import subscribe

        unsubscribe = subscribe(print)
        unsubscribe()
    """
    everywhere.append(callback)
    return lambda: everywhere.remove(callback) if callback in everywhere else None


def call_subscribers(own: Iterable[TurnSubscriber], event: TurnEvent) -> None:
    """Call the subscribers. Best effort: errors are logged, not raised."""
    for callback in (*own, *everywhere):
        try:
            callback(event)
        except Exception:
            logger.exception("a subscriber of turns failed")
