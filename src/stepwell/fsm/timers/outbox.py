"""The outbox: answers without an update, of timers and jobs, kept in the record until they are sent.

Telegram delivers an update again if its answer was lost. Nothing repeats a timer or a job, so its calls are written in
the commit that makes them, as an entry in the head of the record. The worker that committed sends them immediately and
then removes the entry. If it dies, the deadline of the record leads another worker to the entry.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NamedTuple, TypeAlias

from stepwell import _portal
from stepwell._backoff import backoff
from stepwell.codec import decode_key, values
from stepwell.errors import AlreadyHeld, BotApiError, BotUnavailable, Conflict, EncodeError, StorageError, TooLarge
from stepwell.fsm.base import Machine
from stepwell.fsm.conversation.extension import EXPIRY, Extension, end, extension_of, keep, set_timer
from stepwell.fsm.refusals import Origin, report_refusal, sending
from stepwell.fsm.timers.expiry import schedule
from stepwell.record import KEEP, NOWHERE
from stepwell.slot import Slot
from stepwell.storage import Storage
from stepwell.texts import fit

__all__ = ["STOP_TIMEOUT", "add", "deliver", "deliver_held", "finish", "leave_calls", "take"]

logger: logging.Logger = logging.getLogger(__name__)

#: The time from which another worker may send the calls, the number of attempts, and the calls as JSON.
Entry: TypeAlias = tuple[float, int, str]
#: Seconds that sending the calls of one entry may take, and seconds before another worker sends them.
SEND_TIMEOUT, RETRY = 45.0, 60.0
#: The longest pause between two attempts, in seconds, and the most attempts.
LONGEST_PAUSE, MOST_ATTEMPTS = 3600.0, 20
#: Seconds that a stopping machine waits for calls under way, and then for the write that leaves them to another worker.
STOP_TIMEOUT, HAND_BACK_TIMEOUT = 10.0, 5.0


class Unsent(NamedTuple):
    """Calls to send, and their entry; ``None`` if they could not be stored."""

    entry: Entry | None
    calls: list[dict[str, Any]]
    #: The record had its time of expiry in a timer before this entry.
    had_expiry: bool = False


def add(fsm: Machine, slot: Slot, calls: list[dict[str, Any]] | None) -> Unsent | None:
    """Add calls to a held record, to be written by its next commit. Return the calls to deliver after that commit.

    Calls behind an entry that is not sent yet are delivered after it, by the worker that sends it.
    """
    if not calls:
        return None
    calls = fit(calls, fsm.formatting)
    if fsm.send is None:
        logger.warning("answers without an update were dropped; pass send= to FSM or Router, or use run_polling()")
        return None
    if type(fsm.storage).due is Storage.due:
        # This storage cannot find records by deadline, so another worker would never find the entry.
        return Unsent(None, calls)
    try:
        text = _text_of(slot, calls)
    except (EncodeError, TooLarge) as error:
        logger.warning("calls without an update are sent but not stored, so a crash loses them: %s", error)
        return Unsent(None, calls)
    kept = extension_of(slot)
    entry, earlier = (float(slot.time() + RETRY), 0, text), kept.outbox
    keep(slot, outbox=(*earlier, entry))
    return None if earlier else Unsent(entry, calls, kept.own_expiry)


async def leave_calls(
    storage: Storage, bot: str, key: Any, calls: list[dict[str, Any]], *, tags: tuple[str, ...] = (), wait: float = 10.0
) -> None:
    """Leave calls to the processes of a bot, which send them at least once, after those of the key that wait already.

    ``tags``: those of a record that is made for them. Raises ``Busy`` if a handler holds the record.

    Example::

        from stepwell.fsm.engine import leave_calls

        call = {"method": "sendMessage", "chat_id": 42, "text": "Somebody will look at it."}
        await leave_calls(storage, "my_bot", (42, 42), [call], tags=("user:42",))
    """
    async with Slot(storage, bot, key, wait=wait) as slot:
        entry = (float(slot.time()), 0, _text_of(slot, fit(calls)))
        keep(slot, outbox=(*extension_of(slot).outbox, entry))
        await slot.commit(expiry=schedule(slot, KEEP), tags=KEEP if slot.tags else tags)


def _text_of(slot: Slot, calls: list[dict[str, Any]]) -> str:
    """Encode calls for an entry. Raises ``EncodeError`` or ``TooLarge``."""
    limits = slot.storage.limits
    text = values.encode(calls, limits)
    # The entry is a text in the JSON of the head, which the record needs for more than this entry.
    size, most = len(values.to_json(text.decode())), limits.record // 2
    if size > most:
        raise TooLarge("the calls", size, most)
    return text.decode()


async def take(slot: Slot) -> Unsent:
    """Return the first calls of a held record, to be delivered. Other workers skip them for a while."""
    unsent = _take_first(slot)
    await slot.commit(keep=True)
    return unsent


def _take_first(slot: Slot) -> Unsent:
    (_, attempts, text), *others = extension_of(slot).outbox
    # The pause does not grow with attempts here: a worker that was killed says nothing about the next attempt.
    entry = (float(slot.time() + RETRY), attempts + 1, text)
    keep(slot, outbox=(entry, *others))
    return Unsent(entry, values.decode(text, slot.storage.limits.depth))


async def deliver(fsm: Machine, key: Any, unsent: Unsent | None) -> None:
    """Send calls and those behind them, without holding the record, and remove their entries.

    Best effort: errors are logged. If the caller is cancelled, the calls are still sent, until ``finish``.
    """
    if unsent is None:
        return
    task = asyncio.create_task(_deliver(fsm, key, unsent), name="stepwell-outbox")
    fsm.deliveries.add(task)
    task.add_done_callback(fsm.deliveries.discard)
    await asyncio.shield(task)


async def finish(fsm: Machine, *, timeout: float) -> None:
    """Wait until the calls under way are sent. Leave calls that take too long, or all at a cancellation, to others."""
    try:
        if fsm.deliveries:
            await asyncio.wait(fsm.deliveries, timeout=timeout)
    finally:
        late = list(fsm.deliveries)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)


async def _deliver(fsm: Machine, key: Any, unsent: Unsent) -> None:
    following: Unsent | None = unsent
    while following is not None:
        left = list(following.calls)
        try:
            with sending(Origin(fsm, key)):
                await _send(fsm, following.entry, left)
        except asyncio.CancelledError:
            await _hand_back(fsm, key, following.entry, left)
            raise
        if following.entry is None:
            return
        try:
            async with Slot(fsm.storage, fsm.bot, key, wait=fsm.wait, lease=fsm.lease) as slot:
                following = await _replace(fsm, slot, following, left)
        except (Conflict, StorageError, AlreadyHeld) as error:
            logger.warning("calls that were sent stay in the outbox and may be sent again: %s", error)
            return


async def _hand_back(fsm: Machine, key: Any, entry: Entry | None, left: list[dict[str, Any]]) -> None:
    """Let the next worker send calls immediately. Best effort: without this it waits for the time in the entry."""
    if entry is None:
        return
    try:
        async with (
            asyncio.timeout(HAND_BACK_TIMEOUT),
            Slot(fsm.storage, fsm.bot, key, wait=fsm.wait, lease=fsm.lease) as slot,
        ):
            outbox = extension_of(slot).outbox
            if entry in outbox:
                back = (float(slot.now), entry[1], _text_of(slot, left))
                keep(slot, outbox=tuple(back if each == entry else each for each in outbox))
                await slot.commit()
    except (Conflict, StorageError, AlreadyHeld, TimeoutError) as error:
        logger.warning("calls that were not sent will be sent in about a minute: %s", error)


async def deliver_held(fsm: Machine, slot: Slot, unsent: Unsent) -> None:
    """Send calls of a held record, remove their entry, and keep the claim."""
    following: Unsent | None = unsent
    while following is not None:
        left = list(following.calls)
        with sending(Origin(fsm, decode_key(slot.address.key))):
            await _send(fsm, following.entry, left)
        following = await _replace(fsm, slot, following, left, holds=True)


async def _send(fsm: Machine, entry: Entry | None, calls: list[dict[str, Any]]) -> None:
    """Send calls in order, and remove each from the list. They stay there if one cannot be sent now."""
    attempts = MOST_ATTEMPTS if entry is None else entry[1]
    send = fsm.send
    if send is None:
        return
    is_last = attempts >= MOST_ATTEMPTS
    try:
        async with asyncio.timeout(SEND_TIMEOUT):
            while calls:
                try:
                    await _portal.call_function(send, calls[0])
                except BotApiError as error:
                    if isinstance(error, BotUnavailable) and not is_last:
                        raise
                    await report_refusal(logger, calls[0], error)
                except Exception as error:
                    if not is_last:
                        raise
                    logger.exception("%s could not be sent and is dropped", calls[0].get("method"))
                    await report_refusal(logger, calls[0], error)
                del calls[0]
    except Exception as error:
        if is_last:
            logger.exception(
                "%s and the calls after it could not be sent in time and are dropped", calls[0].get("method")
            )
            for call in calls:
                await report_refusal(logger, call, error)
            calls.clear()
        else:
            logger.exception("%s could not be sent and will be retried", calls[0].get("method"))


async def _replace(
    fsm: Machine, slot: Slot, unsent: Unsent, left: list[dict[str, Any]], *, holds: bool = False
) -> Unsent | None:
    """Replace an entry with its unsent calls, or remove it if there are none, and write. Return the next calls."""
    kept, entry = extension_of(slot), unsent.entry
    if entry is None or entry not in kept.outbox:
        return None
    still = (float(slot.time() + backoff(entry[1], RETRY, LONGEST_PAUSE)), entry[1], _text_of(slot, left))
    outbox = tuple(still if each == entry else each for each in kept.outbox if left or each != entry)
    keep(slot, outbox=outbox, own_expiry=True)
    following = _take_first(slot) if outbox and not left else None
    if not outbox and slot.place == NOWHERE and not slot.data:
        end(slot)
    expires_at = slot.timers.get(EXPIRY)
    if expires_at is not None and not outbox and _only_outbox_outlives(fsm, kept, unsent):
        if expires_at <= slot.now:
            end(slot)
        elif not kept.profile and not slot.deleted:
            # From now on the storage has the time of expiry again.
            keep(slot, own_expiry=False)
            set_timer(slot, EXPIRY, None)
            await slot.commit(keep=holds, expiry=expires_at - slot.time())
            return None
    await slot.commit(keep=holds, expiry=schedule(slot, KEEP))
    return following


def _only_outbox_outlives(fsm: Machine, kept: Extension, unsent: Unsent) -> bool:
    """Return whether only the outbox has kept a record longer than its expiry."""
    hands_over = fsm.on_expired is not None or kept.expired
    return not (hands_over or unsent.had_expiry)
