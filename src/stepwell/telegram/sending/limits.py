"""The rates at which Telegram accepts messages, and the calls that count as messages. No I/O."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any, TypeAlias

from stepwell._secrets import quoted
from stepwell.errors import InvalidOption
from stepwell.options import check_number

__all__ = ["ChatId", "SendLimits", "Window", "chat_of", "is_group", "messages_in"]

#: A number, or the ``@name`` of a group or channel in lower case.
ChatId: TypeAlias = int | str

#: Calls with a ``chat_id`` that show nothing lasting, so Telegram does not count them as messages.
_NOT_MESSAGES = frozenset({"sendchataction", "sendmessagedraft"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SendLimits:
    """How many messages a client sends. ``None`` turns a limit off.

    The defaults are Telegram's. A bot with paid broadcasts may send more: ``SendLimits(per_second=1000)``.

    Example::

        bot = BotClient("42:token", limits=SendLimits(per_second=1000))
    """

    #: Messages in any second, to all chats together.
    per_second: int | None = 30
    #: Messages a second to one chat, on average.
    per_chat: float | None = 1.0
    #: Messages to one chat that may leave at once after a pause.
    burst: int = 3
    #: Messages in any minute to one group or channel.
    per_group: int | None = 20

    def __post_init__(self) -> None:
        for name in ("per_second", "burst", "per_group"):
            value = getattr(self, name)
            if (value is None and name != "burst") or (type(value) is int and value >= 1):
                continue
            raise InvalidOption(f"SendLimits({name}={quoted(value)}): must be a whole number above 0")
        rate = self.per_chat
        check_number(
            rate, "SendLimits(per_chat={}): must be a number above 0, or None", above=0, optional=True, finite=True
        )


class Window:
    """At most ``count`` messages in any span of ``seconds``."""

    __slots__ = ("_seconds", "_sent")

    def __init__(self, count: int, seconds: float) -> None:
        self._seconds = seconds
        self._sent: deque[float] = deque(maxlen=count)

    def ready_at(self, messages: int) -> float:
        """Return the time from which this many messages are allowed; more than fit count as a full window."""
        full: int = self._sent.maxlen or 0
        beyond = len(self._sent) + min(messages, full) - full
        return self._sent[beyond - 1] + self._seconds if beyond > 0 else -math.inf

    def take(self, now: float, messages: int) -> None:
        """Count messages that leave now."""
        self._sent.extend([now] * min(messages, self._sent.maxlen or 0))

    @property
    def empty_at(self) -> float:
        """The time from which no message counts."""
        return self._sent[-1] + self._seconds if self._sent else -math.inf


def chat_of(method: str, params: dict[str, Any]) -> ChatId | None:
    """Return the chat whose calls this one must follow, ``None`` if it needs no order.

    Calls that only read (``getChat``) need none.
    """
    chat = params.get("chat_id")
    if chat is None or isinstance(chat, bool) or method[:3].lower() == "get":
        return None
    if isinstance(chat, int):
        return int(chat)
    if not isinstance(chat, str):
        return None
    try:
        # Forms and configuration files have numbers as text.
        return int(chat)
    except ValueError:
        return chat.lower()


def is_group(chat: ChatId) -> bool:
    """Return whether a chat is a group or channel: a negative id, or a name, which private chats do not have."""
    return isinstance(chat, str) or chat < 0


def messages_in(method: str, params: dict[str, Any]) -> int:
    """Return how many messages a call sends; 0 for calls that Telegram does not count."""
    name = method.lower()
    if not name.startswith(("send", "forward", "copy")) or name in _NOT_MESSAGES:
        return 0
    several = params.get("media") or params.get("message_ids")
    return len(several) if isinstance(several, (list, tuple)) else 1
