"""The messages that show texts while they are written, so that the same message is completed after a crash."""

from __future__ import annotations

import logging

from stepwell.errors import StepwellError
from stepwell.record import DAY, SHOWN, Change, OpenedHead, Place
from stepwell.storage.contract import Storage
from stepwell.storage.operations import Apply

__all__ = ["ShownMessage"]

logger: logging.Logger = logging.getLogger(__name__)


class ShownMessage:
    """The id of the message that shows a text. ``what`` names the text, and is the same when it is written again."""

    def __init__(self, storage: Storage, what: tuple[str | int, ...]) -> None:
        self._storage = storage
        self._what = what

    async def load(self) -> int | None:
        """Return the id that an earlier writer has stored."""
        stored = await self._storage.get_data(SHOWN, self._what)
        found = None if stored is None else stored.get("message_id")
        return found if isinstance(found, int) else None

    async def store(self, message_id: int | None) -> None:
        """Store an id for a day. Best effort: without it a second message is begun after a crash."""
        storage = self._storage
        address = storage.address(SHOWN, self._what)
        seal = storage.seal(address)
        change = Change(
            storage.ids(),
            head=seal.head(OpenedHead(Place("message", None))),
            set=seal.fields({"message_id": message_id}),
            expiry=DAY,
        )
        try:
            await storage.perform(Apply(address, change))
        except StepwellError as error:
            logger.warning("the message that shows a text was not stored: %s", error)
