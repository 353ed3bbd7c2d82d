"""The calls of a bot that are not sent yet, those that were refused, and messages of operators to users."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any, NamedTuple

from stepwell import Storage
from stepwell.engine import (
    NOWHERE,
    Address,
    Due,
    Get,
    Slot,
    Stored,
    decode_key,
    decode_namespace,
    decode_value,
    encode_namespace,
    replaced,
)
from stepwell.errors import InvalidOption, StoredDataError
from stepwell.fsm import keys
from stepwell.fsm.engine import (
    Extension,
    RefusedCall,
    after_end,
    leave_calls,
    opened_extension,
    refused_log,
    with_kept,
)
from stepwell.operate.audit import ChangedThing, record_change
from stepwell.operate.record import read
from stepwell.operate.runs import shown_value

__all__ = [
    "UnsentCalls",
    "change_unsent",
    "drop_refused",
    "refused_call",
    "reply",
    "send_refused_again",
    "unsent_calls",
]

#: How many due records one read returns, and a time after all timers.
PAGE, END = 200, 1e12
#: Seconds to wait for a record that its bot holds.
WAIT = 10.0


class UnsentCalls(NamedTuple):
    """The unsent calls of one conversation."""

    bot: str
    key: Any
    #: When a worker may send them, how often that was tried, and the methods with their chats.
    next_at: float
    attempts: int
    calls: list[tuple[str, int | str | None]]


async def unsent_calls(storage: Storage, bot: str, *, limit: int, most: float = inf) -> list[UnsentCalls]:
    """Return the unsent calls of a bot, the next ones first.

    It reads the records with timers, the next ones first, and at most about ``most`` of them. Calls are tried again
    soon, so they are among the first.
    """
    found: list[UnsentCalls] = []
    namespace, last, looked = encode_namespace(bot, storage.limits), None, 0
    await storage.ensure_open()
    while len(found) < limit and looked < most:
        page: list[Due] = await storage.due(namespace, before=END, limit=PAGE, after=last)
        looked += len(page)
        records: list[Stored | None] = await asyncio.gather(*(storage.perform(Get(due.address)) for due in page))
        for due, stored in zip(page, records, strict=True):
            if stored is None:
                continue
            try:
                head = storage.seal(due.address).open_head(stored.head)
                kept = opened_extension(head.extension, due.address)
            except StoredDataError:
                continue
            if kept.outbox:
                at, attempts, _ = kept.outbox[0]
                found.append(UnsentCalls(bot, decode_key(due.address.key), at, attempts, _calls_in(storage, kept)))
        if not page:
            break
        last = page[-1]
    return sorted(found[:limit], key=lambda each: each.next_at)


async def change_unsent(storage: Storage, unsent: UnsentCalls, *, drop: bool) -> bool:
    """Let the bot send the calls of a conversation now, or drop them. Return ``False`` if they were sent meanwhile.

    Raises ``Busy`` if the bot holds the record.
    """
    async with Slot(storage, unsent.bot, unsent.key, wait=WAIT) as slot:
        kept = opened_extension(slot.head.extension, slot.address)
        if not kept.outbox:
            return False
        (_, attempts, text), *others = kept.outbox
        kept = replaced(kept, outbox=() if drop else ((float(slot.time()), attempts, text), *others))
        if drop and slot.place == NOWHERE and not slot.data:
            slot.delete()
            slot.head = after_end(kept)
        else:
            slot.head = with_kept(slot.head, kept)
        return await slot.commit()


async def reply(storage: Storage, address: Address, text: str, *, chat: int | None, who: str) -> None:
    """Leave a message to the user of a conversation to its bot, which sends it after the calls that wait already.

    ``chat``: where it goes, if the record does not say it. Raises ``Busy`` if a handler holds the record.
    """
    stored = await read(storage, address)
    where = {"chat_id": chat} if chat is not None else _where(storage, address, stored)
    bot, key = decode_namespace(address.namespace), decode_key(address.key)
    await leave_calls(storage, bot, key, [{"method": "sendMessage", **where, "text": text}], wait=WAIT)
    subject = ChangedThing.of(address, stored.tags)
    await record_change(storage, who, f"replied to {bot} {address.key}", subject, after={"text": text})


def _where(storage: Storage, address: Address, stored: Stored) -> dict[str, Any]:
    """Return where the user of a conversation is answered: as its last update says, else by its tags."""
    kept = opened_extension(storage.seal(address).open_head(stored.head).extension, address)
    if kept.where:
        return keys.params_of(kept.where)
    for kind in ("chat:", "user:"):
        found = [tag.removeprefix(kind) for tag in stored.tags if tag.startswith(kind)]
        if len(found) == 1:
            return {"chat_id": int(found[0])}
    raise InvalidOption(f"the chat of {address.key} is not known; give its id")


async def refused_call(storage: Storage, bot: str, chat: int | str | None, number: int) -> RefusedCall | None:
    """Return one call that was refused; ``None`` if it is gone."""
    found = await refused_log(storage, bot, chat).read(after=number - 1, before=number + 1)
    return RefusedCall(number, **found[0].value) if found else None


async def send_refused_again(storage: Storage, bot: str, refused: RefusedCall, *, who: str) -> bool:
    """Leave a call that was refused to its bot, and return whether it was still there."""
    if refused.call is None:
        raise InvalidOption(f"the call to {refused.chat} was too large to be kept, so it cannot be sent again")
    log = refused_log(storage, bot, refused.chat)
    # Two operators do not send it twice.
    async with log.claim():
        if not await log.read(after=refused.number - 1, before=refused.number + 1):
            return False
        tags = tuple(_owners(refused.chat))
        await leave_calls(storage, bot, ("sent again", refused.chat), [refused.call], tags=tags, wait=WAIT)
        await log.remove(refused.number)
    await _record(storage, bot, refused, "sent again", who)
    return True


async def drop_refused(storage: Storage, bot: str, refused: RefusedCall, *, who: str) -> bool:
    """Remove a call that was refused, and return whether it was still there."""
    if not await refused_log(storage, bot, refused.chat).remove(refused.number):
        return False
    await _record(storage, bot, refused, "dropped", who)
    return True


async def _record(storage: Storage, bot: str, refused: RefusedCall, done: str, who: str) -> None:
    what = f"{done}: the refused {refused.method} of {bot} to {refused.chat}"
    subject = ChangedThing("call", bot, str(refused.chat), tuple(_owners(refused.chat)))
    before = {"reason": refused.description, "call": None if refused.call is None else shown_value(refused.call)}
    await record_change(storage, who, what, subject, before=before)


def _owners(chat: int | str | None) -> list[str]:
    owners = [] if chat is None else [f"chat:{chat}"]
    return [*owners, f"user:{chat}"] if type(chat) is int and chat > 0 else owners


def _calls_in(storage: Storage, kept: Extension) -> list[tuple[str, int | str | None]]:
    calls = [call for _, _, text in kept.outbox for call in decode_value(text, storage.limits.depth)]
    return [(str(call.get("method")), call.get("chat_id")) for call in calls]
