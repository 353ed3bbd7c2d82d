"""Registered bots, and the failures that tests request for their calls."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from stepwell.botapi.errors import Refusal
from stepwell.botapi.limits import SendTimes
from stepwell.botapi.updates import UpdateQueue

__all__ = ["Bot", "Failure"]

#: The most calls that are kept for each bot.
MAX_CALLS = 1000


@dataclass(slots=True, eq=False)
class Failure:
    """A failure of the next calls, for tests of error handling."""

    #: ``None`` for a connection that is cut.
    refusal: Refusal | None
    #: In lower case; ``None`` for every method.
    method: str | None
    #: The only ``chat_id``; ``None`` for calls to any chat or to none.
    chat: int | str | None
    times: int
    #: Whether a connection is cut after the call was performed.
    after: bool = False

    def fits(self, method: str, chat: object) -> bool:
        """Return whether it is for a call of this method to this chat."""
        return self.method in (None, method.lower()) and self.chat in (None, chat)


@dataclass(slots=True, eq=False)
class Bot:
    """A registered bot.

    Example::

        async with BotAPI() as api:
            bot = api.bot("my_bot")
            print(bot.token, bot.user["username"])
    """

    id: int
    name: str
    token: str = field(repr=False)
    #: Its user, as ``getMe`` returns it.
    user: dict[str, Any] = field(repr=False)
    updates: UpdateQueue = field(default_factory=UpdateQueue, repr=False)
    #: The newest calls, each with ``method``, its parameters and its ``answer``.
    calls: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=MAX_CALLS), repr=False)
    #: The commands of ``setMyCommands``, by scope and language.
    commands: dict[tuple[str, str], list[Any]] = field(default_factory=dict, repr=False)
    #: Its name, descriptions, menu buttons and default rights, by field and language or chat.
    profile: dict[tuple[str, str], Any] = field(default_factory=dict, repr=False)
    failures: list[Failure] = field(default_factory=list, repr=False)
    #: When it has sent messages, for the limits of the world.
    sent: SendTimes = field(default_factory=SendTimes, repr=False)

    def refuse(
        self,
        code: int,
        description: str,
        *,
        method: str | None = None,
        chat: int | str | None = None,
        times: int = 1,
        **more: Any,
    ) -> None:
        """Make the next calls fail: ``bot.refuse(429, "Too Many Requests: retry after 3", retry_after=3)``.

        ``method`` and ``chat`` choose the calls, by default all.
        """
        self.failures.append(Failure(Refusal(code, description, **more), method and method.lower(), chat, times))

    def limit(
        self, retry_after: int, *, method: str | None = None, chat: int | str | None = None, times: int = 1
    ) -> None:
        """Make the next calls fail with 429."""
        what = f"Too Many Requests: retry after {retry_after}"
        self.refuse(429, what, method=method, chat=chat, times=times, retry_after=retry_after)

    def cut(
        self, *, method: str | None = None, chat: int | str | None = None, times: int = 1, after: bool = False
    ) -> None:
        """Close the connection of the next calls without a response; ``after=True``: after the call was performed."""
        self.failures.append(Failure(None, method and method.lower(), chat, times, after))

    def failure_of(self, method: str, chat: object = None) -> Failure | None:
        """Return the failure that is set for a call, if any, and count it."""
        if not self.failures:
            return None
        failure = next((failure for failure in self.failures if failure.fits(method, chat)), None)
        if failure is not None:
            failure.times -= 1
            if failure.times <= 0:
                self.failures.remove(failure)
        return failure
