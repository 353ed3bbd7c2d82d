"""The updates that a bot has not confirmed yet, for getUpdates and for webhooks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from stepwell.playground.botapi.refusal import Refusal

__all__ = ["Pending", "UpdateQueue"]

#: What a bot gets only if it asks for it.
ON_REQUEST = frozenset({"chat_member", "message_reaction", "message_reaction_count"})


@dataclass(slots=True, eq=False)
class Pending:
    """An update on its way."""

    update: dict[str, Any]
    #: Updates of one lane are delivered one after the other.
    lane: object
    #: It was delivered before, and comes again: confirming later ones does not confirm it.
    again: bool = False
    given: bool = False


class UpdateQueue:
    """In the order in which things happened; confirmed by an offset, or by a webhook that answered."""

    def __init__(self) -> None:
        self.pending: list[Pending] = []
        #: Everything that ever happened, confirmed or not, oldest first.
        self.all: list[dict[str, Any]] = []
        #: The kinds that the bot asked for; ``None``: the usual ones.
        self.allowed: frozenset[str] | None = None
        #: Told of every new one; set while there is a webhook.
        self.taker: Callable[[Pending], None] | None = None
        self._poll: asyncio.Future[None] | None = None

    def wants(self, kind: str) -> bool:
        """The bot gets updates of this kind."""
        return kind not in ON_REQUEST if self.allowed is None else kind in self.allowed

    def allow(self, kinds: Iterable[str] | None) -> None:
        """What ``allowed_updates`` says; left out, it stays as it was."""
        if kinds is not None:
            self.allowed = frozenset(kinds) or None

    def put(self, update: dict[str, Any], lane: object, *, again: bool = False) -> None:
        """Something happened, or happens to be delivered again."""
        if not again:
            self.all.append(update)
        # What comes again has a lane of its own: nothing keeps it from overtaking.
        entry = Pending(update, object() if again else lane, again)
        self.pending.append(entry)
        if self.taker is not None:
            self.taker(entry)
        elif self._poll is not None and not self._poll.done():
            self._poll.set_result(None)

    def done(self, entry: Pending) -> None:
        """A webhook took it."""
        if entry in self.pending:
            self.pending.remove(entry)

    def drop(self) -> None:
        """Forget all that is pending."""
        self.pending.clear()

    async def poll(self, offset: int, limit: int, timeout: float) -> list[dict[str, Any]]:
        """What getUpdates gives. Only one call waits at a time: a new one sends the one before away."""
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
        """Whoever waits gets nothing, now."""
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
