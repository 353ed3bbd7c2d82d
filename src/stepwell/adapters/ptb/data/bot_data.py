"""The bot data during one update: what the update has changed is written with it, or restored if it fails.

All updates and jobs of a process share one object. An update notes at its beginning what jobs have changed and not
written yet, so that its failure restores only later changes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from stepwell.adapters.ptb.data import fields
from stepwell.adapters.ptb.data.entries import BOT, EntryRecords
from stepwell.adapters.ptb.data.merging import replace
from stepwell.adapters.ptb.objects import AnyApplication
from stepwell.engine import fingerprint
from stepwell.errors import EncodeError, TooLarge

__all__ = ["BotDataOfUpdate"]

logger: logging.Logger = logging.getLogger(__name__)


class _Item(NamedTuple):
    """An item of the bot data in its stored form."""

    name: str = ""
    #: ``None`` if there is no such item, or if it cannot be stored.
    text: str | None = None
    error: EncodeError | TooLarge | None = None


_MISSING = _Item()


class BotDataOfUpdate:
    """The bot data of an application while it handles an update."""

    def __init__(self, entries: EntryRecords, application: AnyApplication) -> None:
        self._entries = entries
        self._application = application
        #: By their keys, the items that were changed and not written when the update began: the stored and own ones.
        self._unwritten: dict[Any, tuple[_Item, _Item]] = {}
        self._written = False

    def begin(self, *, alone: bool) -> None:
        """Note what jobs have changed. ``alone``: no other update is being handled in this process.

        Changes that cannot be stored are then restored and logged, because every update would fail with them.
        """
        known, data = self._entries.known(BOT, BOT), self._application.bot_data
        if known is None or (not known.texts and not self._items()) or self._entries.is_equal(BOT, BOT, data):
            return
        stored, live = self._stored(), self._live()
        errors: list[EncodeError | TooLarge] = []
        too_large = _too_large(stored, live, self._limit)
        if too_large is not None:
            errors.append(too_large)
        for key in {**stored, **live}:
            was, now = stored.get(key, _MISSING), live.get(key, _MISSING)
            if now.error is not None:
                errors.append(self._explained(key, now.error))
            elif now.text == was.text:
                continue
            elif too_large is None:
                self._unwritten[key] = was, now
                continue
            if alone:
                self._put(key, was)
        for error in errors if alone else ():
            logger.error("bot_data was changed outside of an update and cannot be stored; it was restored: %s", error)
        if not errors and not self._unwritten:
            self._entries.note_equal(BOT, BOT, known, fingerprint(self._items()))

    def is_changed(self) -> bool:
        """Return whether there is anything to write. Raises ``EncodeError`` or ``TooLarge`` if it cannot be stored."""
        return self._entries.is_changed(BOT, BOT, self._application.bot_data)

    async def write(self) -> None:
        """Write the changes."""
        # save() encodes the data before it waits for anything.
        mark = fingerprint(self._items())
        await self._entries.save(BOT, BOT, self._application.bot_data)
        known = self._entries.known(BOT, BOT)
        if known is not None and not known.behind:
            self._entries.note_equal(BOT, BOT, known, mark)
        self._written = True

    def restore(self, *, alone: bool) -> None:
        """Undo the changes in memory, unless they were written.

        If other updates are being handled, they may have changed the data too. Then only items that cannot be stored
        are restored, or all if they are too large together.
        """
        if self._written:
            return
        stored, live = self._stored(), self._live()
        everything = alone or _too_large(stored, live, self._limit) is not None
        restored: list[str] = []
        for key in {**live, **stored}:
            was, now = stored.get(key, _MISSING), live.get(key, _MISSING)
            wanted = was
            if key in self._unwritten:
                base, own = self._unwritten[key]
                # If it was written meanwhile, or changed by another process, the present item has both changes.
                wanted = own if base.text == was.text else now if now.error is None else was
            if now.error is not None or (everything and now.text != wanted.text):
                self._put(key, wanted)
                restored.append(str(key))
        if restored:
            # A job may have changed them while the update was handled.
            logger.warning("an update failed; these items of bot_data were restored: %s", ", ".join(sorted(restored)))

    @property
    def _limit(self) -> int:
        return self._entries.seal(BOT).limit

    def _items(self) -> Any:
        return fields.items_of(self._application.bot_data) or {}

    def _stored(self) -> dict[Any, _Item]:
        known = self._entries.known(BOT, BOT)
        texts = {} if known is None else known.texts
        return {key: _Item(name, texts[name]) for name, key in fields.names_of(BOT, texts)}

    def _live(self) -> dict[Any, _Item]:
        seal, found = self._entries.seal(BOT), {}
        for key, value in self._items().items():
            name = ""
            try:
                name = seal.name(fields.field_of(BOT, key))
                found[key] = _Item(name, seal.field(name, value))
            except (EncodeError, TooLarge) as error:
                found[key] = _Item(name, error=error)
        return found

    def _explained(self, key: Any, error: EncodeError | TooLarge) -> EncodeError | TooLarge:
        """Return an error with the path of the value."""
        return fields.explain(BOT, BOT, {key: self._items()[key]}, self._entries.storage.limits) or error

    def _put(self, key: Any, item: _Item) -> None:
        data = self._application.bot_data
        if item.text is None:
            fields.delete_item(data, key)
            return
        (value,) = self._entries.seal(BOT).data({item.name: item.text}).values()
        fields.set_item(data, key, replace(self._items().get(key), value))


def _too_large(before: Mapping[Any, _Item], after: Mapping[Any, _Item], limit: int) -> TooLarge | None:
    """Return the error for items that are too large together."""
    old, new = ({item.name: item.text or "" for item in items.values()} for items in (before, after))
    try:
        fields.check_size(BOT, old, new, limit)
    except TooLarge as error:
        return error
    return None
