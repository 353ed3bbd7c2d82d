"""What a conversation keeps in its record beside flow, state and data, and the names of its timers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from stepwell.codec import values
from stepwell.codec.json import MalformedJSON, Raw, Struct, decoder, replaced, to_json
from stepwell.errors import CorruptRecord
from stepwell.record import NO_HEAD, Address, OpenedHead, Place
from stepwell.slot import Slot

__all__ = [
    "ALBUM",
    "EXPIRY",
    "HAND_OVER",
    "OUTBOX",
    "TIMEOUT",
    "Album",
    "Extension",
    "Waiting",
    "after_end",
    "end",
    "extension_of",
    "keep",
    "opened_extension",
    "set_timer",
    "with_kept",
    "with_timers",
]

#: The timers of a conversation: the timeout of its state; its expiry, if the storage keeps the record longer; the next
#: time to call ``on_expired`` for it; the next time to send what is in its outbox; the time at which an album is
#: complete.
TIMEOUT, EXPIRY, HAND_OVER, OUTBOX, ALBUM = "timeout", "expiry", "hand_over", "outbox", "album"


class Waiting(Struct, frozen=True, array_like=True):
    """A flow that waits for the inner one to end."""

    flow: str | None
    state: str | None
    revision: int | None
    history: tuple[str, ...]
    #: Its data, and the field for the result, as JSON.
    kept: Raw

    @property
    def place(self) -> Place:
        """Its place."""
        return Place(self.flow, self.state, self.revision)

    def opened(self, record: Any) -> tuple[dict[Any, Any], Any]:
        """Return its data and the field for the result. Raises ``CorruptRecord``."""
        try:
            kept = values.decode(bytes(self.kept).decode(), record.storage.limits.depth)
        except values.DecodeError as error:
            raise CorruptRecord(record.address.text, "a waiting flow", str(error)) from error
        if not (isinstance(kept, list) and len(kept) == 2 and isinstance(kept[0], dict) and _is_field(kept[1])):
            raise CorruptRecord(record.address.text, "a waiting flow", "has an unknown format")
        data, into = kept
        return data, into


def _is_field(value: Any) -> bool:
    """Whether data can have a field of this name."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


class Album(Struct, frozen=True, array_like=True):
    """An album whose messages are still arriving."""

    group: str
    #: A time on the backend's clock.
    complete_at: float
    #: How often its handler was called.
    attempts: int = 0
    #: The end was postponed once, because no process had waited for it.
    postponed: bool = False
    #: The updates of its messages, as JSON.
    updates: tuple[str, ...] = ()


class Extension(Struct, frozen=True, omit_defaults=True):
    """What a conversation keeps beside flow, state and data."""

    #: The previous states, the most recent last.
    history: tuple[str, ...] = ()
    #: When the present state and those of the history were entered; see ``stepwell.fsm.history``.
    entered_at: str = ""
    #: The flows that wait for this one to end, outermost first.
    stack: tuple[Waiting, ...] = ()
    #: The chat, thread and business connection for a timer's answer, if the key does not have them.
    where: tuple[Any, ...] = ()
    #: Expired conversations that ``on_expired`` has not handled yet: time of expiry, flow, state, and the time from
    #: which a worker may handle it.
    expired: tuple[tuple[float, str | None, str | None, float], ...] = ()
    #: Bot API calls of timers and jobs that are not sent yet: the time from which another worker may send them, how
    #: often that was tried, and the calls as JSON.
    outbox: tuple[tuple[float, int, str], ...] = ()
    albums: tuple[Album, ...] = ()
    #: Encoded data that outlives the flows at this address; empty if there is none.
    profile: str = ""
    #: The time of expiry is a timer, or there is none. Otherwise the storage has it.
    own_expiry: bool = False


_decode = decoder(Extension)
_NONE: Final = Extension()


def extension_of(record: Any) -> Extension:
    """Return what a held record keeps. Raises ``CorruptRecord``."""
    text = record.head.extension
    if not text:
        return _NONE
    if record.decoded[0] is not text:
        record.decoded = text, opened_extension(text, record.address)
    kept: Extension = record.decoded[1]
    return kept


def opened_extension(text: str, address: Address) -> Extension:
    """Return what the record at an address keeps, of ``OpenedHead.extension``. Raises ``CorruptRecord``."""
    if not text:
        return _NONE
    try:
        kept: Extension = _decode(text)
    except MalformedJSON as error:
        raise CorruptRecord(address.text, "its extension", f"has an unknown format ({error})") from error
    return kept


def with_kept(head: OpenedHead, extension: Extension) -> OpenedHead:
    """Return a head that keeps this, with the timers that belong to it."""
    head = replaced(head, extension="" if extension == _NONE else to_json(extension).decode())
    if not (head.timers or extension.expired or extension.outbox or extension.albums):
        return head
    hand_over = min([entry[3] for entry in extension.expired], default=None)
    # Calls are sent in order, so only the first entry has a time.
    outbox = extension.outbox[0][0] if extension.outbox else None
    album = min([each.complete_at for each in extension.albums], default=None)
    return with_timers(head, {HAND_OVER: hand_over, OUTBOX: outbox, ALBUM: album})


def with_timers(head: OpenedHead, changed: Mapping[str, float | None]) -> OpenedHead:
    """Return a head with these timers, and without those whose time is ``None``."""
    timers = {name: float(at) for name, at in {**head.timers, **changed}.items() if at is not None}
    return replaced(head, timers=timers)


def after_end(extension: Extension) -> OpenedHead:
    """Return the head of a conversation that has ended.

    The profile, expired conversations that ``on_expired`` has not handled yet, unsent calls and albums are kept.
    """
    left = Extension(
        expired=extension.expired, outbox=extension.outbox, albums=extension.albums, profile=extension.profile
    )
    return with_kept(NO_HEAD, left)


def keep(slot: Slot, **changes: Any) -> None:
    """Change what a held record keeps, and the timers that belong to it."""
    kept = replaced(extension_of(slot), **changes)
    slot.head = with_kept(slot.head, kept)
    slot.decoded = slot.head.extension, kept


def set_timer(slot: Slot, name: str, at: float | None) -> None:
    """Set a timer of a held record, or remove it."""
    if at is not None or name in slot.head.timers:
        slot.head = with_timers(slot.head, {name: at})


def end(slot: Slot) -> None:
    """Let the next commit delete a conversation, except for what outlives it."""
    head = after_end(extension_of(slot))
    slot.delete()
    slot.head = head
