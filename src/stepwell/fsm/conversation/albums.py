"""Albums: the messages of one album arrive as one update each, and are kept in the record until they are complete.

Telegram does not say how many messages an album has, so it is complete when no message of it has come for a while. It
is then handled as one update: when its timer is due, by any worker, or before the next update of its sender. The
handler's changes and the removal of the album are one write, so a crash loses no message and handles none twice.
"""

from __future__ import annotations

from typing import Any

from stepwell.codec.json import from_json, replaced, to_json
from stepwell.fsm.conversation.extension import Album, extension_of, keep
from stepwell.fsm.update import Update
from stepwell.slot import Slot
from stepwell.storage import Storage

__all__ = ["MOST_ATTEMPTS", "WINDOW", "add_message", "drop_album", "first_album", "keep_album", "messages_of"]

#: Seconds after the last message of an album at which it is complete.
WINDOW = 1.3
#: How often an album is handled whose process dies each time.
MOST_ATTEMPTS = 5
#: The most messages that one album may have. Telegram's have 10.
MOST_MESSAGES = 50


def add_message(slot: Slot, update: Update, raw: Any = None) -> bool:
    """Add a message to its album in a held record, to be written. Return ``False`` if the album cannot be kept.

    ``raw``: the update as JSON, if it is an object of a framework.
    """
    group, storage = update.media_group_id, slot.storage
    if group is None or type(storage).due is Storage.due:
        return False
    albums = {album.group: album for album in extension_of(slot).albums}
    album = albums.get(group) or Album(group, 0.0)
    if len(album.updates) >= MOST_MESSAGES:
        return False
    updates = (*album.updates, to_json(update.raw if raw is None else raw).decode())
    albums[group] = replaced(album, updates=updates, complete_at=slot.time() + WINDOW)
    keep(slot, albums=tuple(albums.values()))
    return True


def first_album(slot: Slot, before: Update | None = None) -> Album | None:
    """Return the album of a held record that is complete first, or the first one to handle before an update.

    An update is handled after the albums of its sender, unless it belongs to the album.
    """
    for album in sorted(extension_of(slot).albums, key=lambda album: album.complete_at):
        if before is None:
            return album if album.complete_at <= slot.now else None
        first = messages_of(album)[0]
        if before.raw is not None and album.group != before.media_group_id and first.user == before.user:
            return album
    return None


def messages_of(album: Album) -> list[Update]:
    """Return the updates of an album, in the order of their messages."""
    return sorted((Update(from_json(text)) for text in album.updates), key=lambda update: update.message_id or 0)


def keep_album(slot: Slot, album: Album) -> None:
    """Replace the album of this group in a held record."""
    others = tuple(each for each in extension_of(slot).albums if each.group != album.group)
    keep(slot, albums=(*others, album))


def drop_album(slot: Slot, album: Album) -> None:
    """Remove the album of this group from a held record."""
    keep(slot, albums=tuple(each for each in extension_of(slot).albums if each.group != album.group))
