"""Expiry with ``on_expired``: a conversation that expires is handed over at least once.

A storage hides an expired record, and any process that sweeps removes it. A machine with ``on_expired`` therefore keeps
the time of expiry in the head of the record, and gives the storage a deadline at that time and a much later expiry. An
expired conversation becomes an entry in the head, in one write: when a worker finds the deadline, or when the next
update comes first. A worker with ``on_expired`` calls it for each entry and then removes the entry. Each entry has the
time from which another worker may do so, in case this worker dies.
"""

from __future__ import annotations

import logging
from time import monotonic, time
from typing import Any, NamedTuple

from stepwell import _portal
from stepwell.codec import decode_key
from stepwell.errors import StoredDataError
from stepwell.fsm.base import Machine
from stepwell.fsm.events import ConversationExpired, emit, subscribers
from stepwell.record import DAY, KEEP, Address, Keep
from stepwell.slot import Slot
from stepwell.storage import Entry

__all__ = [
    "GRACE",
    "Expired",
    "deadline_of",
    "hand_over",
    "hand_over_swept",
    "is_expired",
    "is_over",
    "is_waiting",
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
    times = slot.place.times
    expires_at = times[0] if times else None
    return expires_at is not None and expires_at <= slot.now


def is_waiting(slot: Slot) -> bool:
    """Return whether a held record has an entry to hand over now."""
    return any(entry[3] <= slot.now for entry in slot.place.expired)


def is_over(entry: Entry, now: float) -> bool:
    """Return whether a listed record has expired, or has nothing but expired conversations and unsent calls."""
    try:
        place = entry.place
        if (place.expired or place.outbox) and place.flow is None and place.state is None:
            return not entry.state.data
    except StoredDataError:
        # The caller gets the same error when it reads the state.
        return False
    expires_at = place.times[0] if place.times else None
    return expires_at is not None and expires_at <= now


def schedule(
    slot: Slot, deadline: float | Keep | None, expiry: float | Keep | None
) -> tuple[float | None, float | None]:
    """Store timeout and expiry in the head. Return the deadline and the expiry to give to the storage.

    All are seconds from now; ``KEEP`` leaves a value unchanged.
    """
    now, place = slot.now, slot.place
    expires_at: float | None = None
    timeout_at: float | None = None
    if place.times:
        expires_at, timeout_at = place.times
    elif not place.expired and not slot.deleted:
        expires_at, timeout_at = slot.expires_at, slot.deadline
    if deadline is not KEEP:
        timeout_at = None if deadline is None else float(now + deadline)
    if expiry is not KEEP:
        expires_at = None if expiry is None else float(now + expiry)
    expired = tuple(entry for entry in place.expired if entry[0] > now - GRACE)
    kept = expired or place.outbox or place.profile
    times = () if expires_at is None and not kept else (expires_at, timeout_at)
    slot.place = place._replace(times=times, expired=expired)
    if not times:
        return (None if timeout_at is None else max(timeout_at - now, 0.0)), None
    if place.profile or (expires_at is None and (place.flow is not None or place.state is not None or slot.data)):
        return deadline_of(slot), None
    return deadline_of(slot), GRACE + max((expires_at or now) - now, 0.0)


def deadline_of(slot: Slot) -> float | None:
    """Return the seconds to the next time in the head: expiry, timeout, hand-over of an entry, or unsent calls."""
    place = slot.place
    # Calls are sent in order, so only the first entry of the outbox has a time.
    waiting = [*[entry[3] for entry in place.expired], *[entry[0] for entry in place.outbox[:1]]]
    due = [at for at in (*place.times, *waiting) if at is not None]
    return max(min(due) - slot.now, 0.0) if due else None


async def retire(fsm: Machine, slot: Slot) -> None:
    """Replace an expired conversation with an entry for ``on_expired``, and keep the claim.

    A machine without ``on_expired`` only deletes the conversation if the record has a profile, which outlives it.
    """
    if fsm.on_expired is None and slot.place.profile:
        slot.delete()
    else:
        _make_entry(slot)
    await slot.commit(keep=True, deadline=deadline_of(slot), expiry=None if slot.place.profile else GRACE)


def _make_entry(slot: Slot) -> None:
    place = slot.place
    entries = (*place.expired, (place.times[0], place.flow, place.state, float(slot.now)))
    if len(entries) > MOST_ENTRIES:
        logger.warning(
            "%s has more than %d expired conversations that no worker has passed to on_expired; the oldest is dropped",
            slot.address.text,
            MOST_ENTRIES,
        )
    slot.delete()
    slot.place = slot.place._replace(expired=entries[-MOST_ENTRIES:])


async def take(slot: Slot) -> tuple[Any, ...]:
    """Return the entries of a held record to hand over now. Other workers skip them for ``RETRY`` seconds."""
    if is_expired(slot):
        _make_entry(slot)
    now = slot.now
    expired = slot.place.expired
    taken = {entry: (*entry[:3], now + RETRY) for entry in expired if entry[3] <= now}
    slot.place = slot.place._replace(expired=tuple(taken.get(entry, entry) for entry in expired))
    expiry = GRACE if slot.deleted and not slot.place.profile else KEEP
    await slot.commit(keep=True, deadline=deadline_of(slot), expiry=expiry)
    return tuple(taken.values())


async def hand_over(fsm: Machine, key: Any, entries: tuple[Any, ...]) -> None:
    """Call ``on_expired`` for entries, without holding the record, and remove them."""
    for _, flow, state, _ in entries:
        await _notify(fsm, Expired(key, flow, state))
    async with Slot(fsm.storage, fsm.bot, key, wait=fsm.wait, lease=fsm.lease) as slot:
        place = slot.place
        if not place.expired:
            return
        left = tuple(entry for entry in place.expired if entry not in entries)
        slot.place = place._replace(expired=left)
        if not left and place.flow is None and place.state is None and not slot.data:
            slot.delete()
        # schedule() reads the times from the storage unless the head has some.
        slot.place = slot.place._replace(times=slot.place.times or (None, None))
        deadline, expiry = schedule(slot, KEEP, KEEP)
        await slot.commit(deadline=deadline, expiry=expiry)


async def hand_over_swept(fsm: Machine, address: Address, head: str | None) -> None:
    """Call ``on_expired`` for a record that the storage has removed."""
    if fsm.on_expired is None and not fsm.subscribers and not subscribers:
        return
    place, key = fsm.storage.seal(address).open_head(head), decode_key(address.key)
    for _, flow, state, _ in place.expired:
        await _notify(fsm, Expired(key, flow, state))
    if place.flow is not None or not place.expired:
        await _notify(fsm, Expired(key, place.flow, place.state))


async def _notify(fsm: Machine, expired: Expired) -> None:
    started = monotonic()
    failure: BaseException | None = None
    try:
        if fsm.on_expired is not None:
            await _portal.call(fsm.on_expired, expired)
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
