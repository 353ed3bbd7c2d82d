"""The queue of a bot's unconfirmed updates, for getUpdates and webhooks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from stepwell.botapi.errors import Refusal

__all__ = ["Pending", "UpdateQueue"]

#: The kinds of updates that a bot gets only if ``allowed_updates`` names them.
ON_REQUEST = frozenset({"chat_member", "message_reaction", "message_reaction_count"})


@dataclass(slots=True, eq=False)
class Pending:
    """An unconfirmed update."""

    update: dict[str, Any]
    #: A webhook gets the updates of one lane one after the other.
    lane: object
    #: A repeated delivery, which an offset confirms only after it was given.
    again: bool = False
    given: bool = False


class UpdateQueue:
    """Updates in order; confirmed by an offset, or by the response of a webhook."""

    def __init__(self) -> None:
        self.pending: list[Pending] = []
        #: All updates, confirmed or not, oldest first.
        self.all: list[dict[str, Any]] = []
        #: The kinds in ``allowed_updates``; ``None`` for the default.
        self.allowed: frozenset[str] | None = None
        #: Called with each new update while there is a webhook.
        self.taker: Callable[[Pending], None] | None = None
        self._poll: asyncio.Future[None] | None = None

    def wants(self, kind: str) -> bool:
        """Return whether the bot gets updates of this kind."""
        return kind not in ON_REQUEST if self.allowed is None else kind in self.allowed

    def allow(self, kinds: Iterable[str] | None) -> None:
        """Set ``allowed_updates``; ``None`` leaves it unchanged."""
        if kinds is not None:
            self.allowed = frozenset(kinds) or None

    def put(self, update: dict[str, Any], lane: object, *, again: bool = False) -> None:
        """Add an update, or deliver one again."""
        if not again:
            self.all.append(update)
        # A repeated update has its own lane, so it may overtake others.
        entry = Pending(update, object() if again else lane, again)
        self.pending.append(entry)
        if self.taker is not None:
            self.taker(entry)
        elif self._poll is not None and not self._poll.done():
            self._poll.set_result(None)

    def done(self, entry: Pending) -> None:
        """Confirm an update that a webhook accepted."""
        if entry in self.pending:
            self.pending.remove(entry)

    def drop(self) -> None:
        """Drop all pending updates."""
        self.pending.clear()

    async def poll(self, offset: int, limit: int, timeout: float) -> list[dict[str, Any]]:
        """Return the next updates for getUpdates. A new call ends the one that is waiting, with 409."""
        if self._poll is not None and not self._poll.done():
            self._poll.set_exception(
                Refusal(
                    409,
                    "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running",
                )
            )
        self._confirm(offset)
        if not self.pending and timeout > 0:
            self._poll = mine = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(timeout):
                    await mine
            except TimeoutError:
                pass
            finally:
                if self._poll is mine:
                    self._poll = None
        batch = self.pending[: max(1, min(limit, 100))]
        for entry in batch:
            entry.given = True
        return [entry.update for entry in batch]

    def stop(self) -> None:
        """End the waiting call with no updates."""
        if self._poll is not None and not self._poll.done():
            self._poll.set_result(None)

    def _confirm(self, offset: int) -> None:
        if offset < 0:
            del self.pending[:offset]
        elif offset > 0:
            self.pending = [
                entry
                for entry in self.pending
                if entry.update["update_id"] >= offset or (entry.again and not entry.given)
            ]
