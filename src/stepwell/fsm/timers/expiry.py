"""Expiry with ``on_expired``: a conversation that expires is handed over at least once.

A storage hides an expired record, and any process that sweeps removes it. A machine with ``on_expired`` therefore keeps
the time of expiry in the head of the record, and gives the storage a deadline at that time and a much later expiry. An
expired conversation becomes an entry in the head, in one write: when a worker finds the deadline, or when the next
update comes first. A worker with ``on_expired`` calls it for each entry and then removes the entry. Each entry has the
time from which another worker may do so, in case this worker dies.
"""

from __future__ import annotations

import logging
from math import inf
from time import monotonic, time
from typing import Any, NamedTuple

from stepwell import _portal
from stepwell.codec import decode_key
from stepwell.errors import StoredDataError
from stepwell.fsm.base import Machine
from stepwell.fsm.conversation.extension import EXPIRY, end, extension_of, keep, opened_extension, set_timer
from stepwell.fsm.events import ConversationExpired, emit, subscribers
from stepwell.record import DAY, KEEP, NOWHERE, Address, Keep
from stepwell.slot import Slot
from stepwell.storage import Entry

__all__ = [
    "GRACE",
    "Expired",
    "hand_over",
    "hand_over_swept",
    "is_expired",
    "is_over",
    "retire",
    "schedule",
    "take",
]

logger: logging.Logger = logging.getLogger(__name__)

#: Seconds that an expired conversation waits for a worker with ``on_expired``; then it is swept.
GRACE = 7 * DAY
#: Seconds before an entry is handed over again if its worker did not remove it.
RETRY = 60.0
#: How many entries one record keeps.
MOST_ENTRIES = 16


class Expired(NamedTuple):
    """A conversation that has expired. Its record is deleted.

    Example::

        async def say(ctx, expired: Expired):
            ctx.answer(f"Your {expired.flow} has expired.")

        fsm = FSM("my_bot", storage="memory://", flows=[Registration], ttl=3600, on_expired=say)
    """

    key: Any
    flow: str | None
    state: str | None


def is_expired(slot: Slot) -> bool:
    """Return whether the conversation of a held record has expired and is not an entry yet."""
    expires_at = slot.timers.get(EXPIRY)
    return expires_at is not None and expires_at <= slot.now


def is_over(entry: Entry, now: float) -> bool:
    """Return whether a listed record has expired, or has only expired conversations, unsent calls and albums."""
    try:
        head = entry.head
        kept = opened_extension(head.extension, entry.address)
        if (kept.expired or kept.outbox or kept.albums) and head.place.flow is None and head.place.state is None:
            return not entry.state.data
    except StoredDataError:
        # The caller gets the same error when it reads the state.
        return False
    return head.timers.get(EXPIRY, inf) <= now


def schedule(slot: Slot, expiry: float | Keep | None) -> float | None:
    """Keep the time of expiry in a timer if the storage must keep the record longer. Return the storage's expiry.

    Both are seconds from now; ``KEEP`` leaves the time unchanged.
    """
    now, kept = slot.time(), extension_of(slot)
    if expiry is not KEEP:
        expires_at = None if expiry is None else now + expiry
    elif kept.own_expiry:
        expires_at = slot.timers.get(EXPIRY)
    else:
        expires_at = None if kept.expired or slot.deleted else slot.expires_at
    expired = tuple(entry for entry in kept.expired if entry[0] > now - GRACE)
    own = expires_at is not None or bool(expired or kept.outbox or kept.profile)
    keep(slot, expired=expired, own_expiry=own)
    set_timer(slot, EXPIRY, expires_at)
    if not own or kept.profile or (expires_at is None and (slot.place != NOWHERE or slot.data)):
        return None
    return GRACE + max((expires_at or now) - now, 0.0)


async def retire(fsm: Machine, slot: Slot) -> None:
    """Replace an expired conversation with an entry for ``on_expired``, and keep the claim.

    A machine without ``on_expired`` only deletes the conversation if the record has a profile, which outlives it.
    """
    if fsm.on_expired is None and extension_of(slot).profile:
        end(slot)
    else:
        _make_entry(slot)
    await slot.commit(keep=True, expiry=None if extension_of(slot).profile else GRACE)


def _make_entry(slot: Slot) -> None:
    place = slot.place
    entries = (*extension_of(slot).expired, (slot.timers[EXPIRY], place.flow, place.state, float(slot.now)))
    if len(entries) > MOST_ENTRIES:
        logger.warning(
            "%s has more than %d expired conversations that no worker has passed to on_expired; the oldest is dropped",
            slot.address.text,
            MOST_ENTRIES,
        )
    end(slot)
    keep(slot, expired=entries[-MOST_ENTRIES:])


async def take(slot: Slot) -> tuple[Any, ...]:
    """Return the entries of a held record to hand over now. Other workers skip them for ``RETRY`` seconds."""
    if is_expired(slot):
        _make_entry(slot)
    now = slot.now
    kept = extension_of(slot)
    taken = {entry: (*entry[:3], now + RETRY) for entry in kept.expired if entry[3] <= now}
    keep(slot, expired=tuple(taken.get(entry, entry) for entry in kept.expired))
    expiry = GRACE if slot.deleted and not kept.profile else KEEP
    await slot.commit(keep=True, expiry=expiry)
    return tuple(taken.values())


async def hand_over(fsm: Machine, key: Any, entries: tuple[Any, ...]) -> None:
    """Call ``on_expired`` for entries, without holding the record, and remove them."""
    for _, flow, state, _ in entries:
        await _notify(fsm, Expired(key, flow, state))
    async with Slot(fsm.storage, fsm.bot, key, wait=fsm.wait, lease=fsm.lease) as slot:
        kept = extension_of(slot)
        if not kept.expired:
            return
        left = tuple(entry for entry in kept.expired if entry not in entries)
        keep(slot, expired=left, own_expiry=True)
        if not left and slot.place == NOWHERE and not slot.data:
            end(slot)
        await slot.commit(expiry=schedule(slot, KEEP))


async def hand_over_swept(fsm: Machine, address: Address, head: str | None) -> None:
    """Call ``on_expired`` for a record that the storage has removed."""
    if fsm.on_expired is None and not fsm.subscribers and not subscribers:
        return
    opened, key = fsm.storage.seal(address).open_head(head), decode_key(address.key)
    place, expired = opened.place, opened_extension(opened.extension, address).expired
    for _, flow, state, _ in expired:
        await _notify(fsm, Expired(key, flow, state))
    if place.flow is not None or not expired:
        await _notify(fsm, Expired(key, place.flow, place.state))


async def _notify(fsm: Machine, expired: Expired) -> None:
    started = monotonic()
    failure: BaseException | None = None
    try:
        if fsm.on_expired is not None:
            await _portal.call_function(fsm.on_expired, expired)
    except BaseException as error:
        failure = error
        raise
    finally:
        if fsm.subscribers or subscribers:
            key, flow, state = expired
            # As in timers.py, before the duration.
            at = time()
            fields = {"flow": flow, "state": state, "duration": monotonic() - started, "error": failure}
            emit(ConversationExpired, fsm, key, fsm.storage.address(fsm.bot, key), at=at, **fields)
