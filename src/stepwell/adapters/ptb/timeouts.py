"""The timeouts of conversations: on time in the process of the last update, and soon after it in any other.

Each timeout is stored with its conversation. A process that handles a later update stores another one, so an earlier
timeout has no effect, in whichever process it fires.
"""

from __future__ import annotations

import asyncio
import contextvars
import datetime
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from telegram import Update

from stepwell.adapters.ptb.conversation import ConversationHandler
from stepwell.adapters.ptb.states import ConversationKey
from stepwell.engine import Slot

__all__ = ["GRACE", "PREFIX", "ConversationTimeout", "ConversationTimers", "deadline_of", "seconds_of", "timeout_field"]

#: The names of fields with timeouts begin with this.
PREFIX: Final = "timeout."
#: Seconds after which any process fires a timeout, because the process of the last update may have ended.
GRACE = 1.0


def timeout_field(name: str) -> str:
    """Return the field with the timeouts of a handler; its value is a dict of pairs: a time, an update."""
    return f"{PREFIX}{name}"


def seconds_of(handler: ConversationHandler) -> float | None:
    """Return the timeout of a handler in seconds; ``None`` if it has none."""
    timeout = handler._conversation_timeout
    return timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else timeout or None


def deadline_of(slot: Slot) -> float | None:
    """Return the time of the earliest timeout in a record; ``None`` if it has none."""
    times = [
        pair[0]
        for field, pairs in slot.data.items()
        if type(field) is str and field.startswith(PREFIX)
        for pair in pairs.values()
    ]
    return min(times, default=None)


class ConversationTimeout(NamedTuple):
    """The timeout of one conversation."""

    handler: ConversationHandler
    key: ConversationKey
    #: Its time on the backend's clock, which also identifies it.
    at: float
    #: The last update of the conversation.
    update: Update
    #: The context of that update; ``None`` if another process has handled it.
    context: Any


class ConversationTimers:
    """The timers of this process. ``fire`` is called with a timeout at its time."""

    def __init__(self, fire: Callable[[ConversationTimeout], object]) -> None:
        self._fire = fire
        self._timers: dict[tuple[int, ConversationKey], asyncio.TimerHandle] = {}

    def set(self, timeout: ConversationTimeout, seconds: float) -> None:
        """Fire a timeout after these seconds, instead of an earlier one of the same conversation."""
        self.cancel(timeout.handler, timeout.key)
        loop = asyncio.get_running_loop()
        # Not in the context of the update, whose claim has ended by then.
        timer = loop.call_later(seconds, self._ring, timeout, context=contextvars.Context())
        self._timers[id(timeout.handler), timeout.key] = timer

    def cancel(self, handler: ConversationHandler, key: ConversationKey) -> None:
        """Cancel the timer of a conversation, if there is one."""
        timer = self._timers.pop((id(handler), key), None)
        if timer is not None:
            timer.cancel()

    def cancel_all(self) -> None:
        """Cancel all timers. The timeouts are still stored."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _ring(self, timeout: ConversationTimeout) -> None:
        self._timers.pop((id(timeout.handler), timeout.key), None)
        self._fire(timeout)
