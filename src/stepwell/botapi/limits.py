"""The flood limits of Telegram: how many messages a bot may send in which time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from math import ceil

__all__ = ["FloodLimits", "SendTimes"]

_MINUTE = 60.0
#: Seconds by which the way of two messages may differ, so that a bot that keeps the limits exactly is never refused.
LEEWAY = 0.25
#: The number of chats above which the times of quiet ones are removed.
MAX_CHATS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FloodLimits:
    """How many messages a bot may send before it gets 429 with ``retry_after``. ``None`` turns a limit off.

    Telegram publishes about one message a second in a chat with short bursts, 20 a minute in a group and 30 a second
    overall. It enforces no exact figures, so these are an approximation. An edit counts as a message, and an album as
    its items. Drafts and chat actions are not counted.

    Example::

        from stepwell.botapi import BotAPI, FloodLimits

        api = BotAPI(limits=FloodLimits(per_group=None))
    """

    #: Messages in any second, to all chats together.
    per_second: int | None = 30
    #: Messages a second to one chat, on average.
    per_chat: float | None = 1.0
    #: Messages to one chat at once after a pause.
    burst: int = 5
    #: Messages in any minute to one group, supergroup or channel.
    per_group: int | None = 20


class SendTimes:
    """When a bot has sent messages, in all chats together and in each chat."""

    def __init__(self) -> None:
        self._overall: deque[float] = deque()
        self._chats: dict[int, deque[float]] = {}
        #: When each chat has no more of its burst to wait for.
        self._rested: dict[int, float] = {}

    def retry_after(self, limits: FloodLimits, chat: int | None, count: int, now: float, *, paid: bool = False) -> int:
        """Return the seconds until ``count`` messages may be sent to a chat; 0 if they may be sent now."""
        wait = max(self._waits(limits, chat, count, now, paid=paid), default=0.0)
        return 0 if wait <= LEEWAY else ceil(wait - LEEWAY)

    def add(self, limits: FloodLimits, chat: int | None, count: int, now: float) -> None:
        """Note that messages were sent."""
        _add(self._overall, count, now)
        if chat is None:
            return
        if len(self._chats) > MAX_CHATS:
            self._chats = {each: times for each, times in self._chats.items() if times[-1] > now - _MINUTE}
            self._rested = {each: at for each, at in self._rested.items() if at > now}
        _add(self._chats.setdefault(chat, deque()), count, now)
        if limits.per_chat is not None:
            self._rested[chat] = max(self._rested.get(chat, now), now) + count / limits.per_chat

    def _waits(self, limits: FloodLimits, chat: int | None, count: int, now: float, *, paid: bool) -> Iterator[float]:
        if limits.per_second is not None and not paid:
            yield _wait(self._overall, limits.per_second, 1.0, count, now)
        if chat is None:
            return
        if limits.per_chat is not None:
            # An album that is larger than the burst may be sent after a pause.
            free = limits.burst - min(count, limits.burst)
            yield self._rested.get(chat, now) - now - free / limits.per_chat
        if limits.per_group is not None and chat < 0:
            yield _wait(self._chats.get(chat, deque()), limits.per_group, _MINUTE, count, now)


def _add(times: deque[float], count: int, now: float) -> None:
    while times and times[0] <= now - _MINUTE:
        times.popleft()
    times.extend([now] * count)


def _wait(times: deque[float], allowed: int, seconds: float, count: int, now: float) -> float:
    """Return the seconds until so many of the last messages are old enough that ``count`` more are allowed."""
    over = len(times) + min(count, allowed) - allowed
    return next(islice(times, over - 1, None)) + seconds - now if over > 0 else 0.0
