"""The calls of a bot that are not sent yet: those of timers and jobs, which wait in the records of conversations."""

from __future__ import annotations

from typing import Any, NamedTuple

from stepwell import Storage
from stepwell.engine import (
    NOWHERE,
    Due,
    Get,
    Slot,
    Stored,
    decode_key,
    decode_value,
    encode_namespace,
    replaced,
)
from stepwell.errors import StoredDataError
from stepwell.fsm.engine import Extension, after_end, opened_extension, with_kept

__all__ = ["UnsentCalls", "change_unsent", "unsent_calls"]

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


async def unsent_calls(storage: Storage, bot: str, *, limit: int) -> list[UnsentCalls]:
    """Return the unsent calls of a bot, the next ones first."""
    found: list[UnsentCalls] = []
    namespace, last = encode_namespace(bot, storage.limits), None
    await storage.ensure_open()
    while len(found) < limit:
        page: list[Due] = await storage.due(namespace, before=END, limit=PAGE, after=last)
        for due in page:
            stored: Stored | None = await storage.perform(Get(due.address))
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


def _calls_in(storage: Storage, kept: Extension) -> list[tuple[str, int | str | None]]:
    calls = [call for _, _, text in kept.outbox for call in decode_value(text, storage.limits.depth)]
    return [(str(call.get("method")), call.get("chat_id")) for call in calls]
