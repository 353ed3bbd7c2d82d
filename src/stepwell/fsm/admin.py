"""People and chats: find their records, forget them, and move a chat that gets a new id."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from stepwell.codec import encode_namespace
from stepwell.errors import InvalidOption, StorageError, StoredDataError
from stepwell.fsm import keys
from stepwell.fsm.description import name_of
from stepwell.fsm.duplicates import HandledUpdates, token_of
from stepwell.fsm.expiry import deadline_of, is_over
from stepwell.record import Address
from stepwell.slot import Slot
from stepwell.storage import ANY, Entry

if TYPE_CHECKING:
    from stepwell.fsm.machine import FSM

__all__ = ["Forgotten", "find", "forget", "move_chat"]

logger = logging.getLogger(__name__)

#: So often ``forget`` removes one record that is listed again.
MOST_ROUNDS = 20


async def find(fsm: FSM, user: int | None, chat: int | None, flow: Any, state: Any) -> AsyncIterator[Entry]:
    """Records of a user, of a chat, in a flow, in a state; without a scan where a tag says which."""
    tags = [f"{name}:{peer}" for name, peer in (("user", user), ("chat", chat)) if peer is not None]
    flow_name = flow if flow is None or flow is ANY else name_of(flow)
    if flow_name is ANY and state is not ANY and getattr(state, "flow_name", None) is not None:
        flow_name = state.flow_name
    now = fsm.storage.clock or time.time
    state_name = state if state is None or state is ANY else str(state)
    async for entry in fsm.storage.scan(fsm.bot, flow=flow_name, state=state_name, tag=tags[0] if tags else None):
        if set(tags) <= set(entry.tags) and not (fsm.expires and is_over(entry, now())):
            yield entry


class Forgotten(int):
    """How many records ``forget`` removed."""

    #: Nothing of them is left on the storage's disk. Otherwise ``await fsm.storage.erase()`` removes what is left,
    #: or the storage is on a server, which has logs and copies of its own.
    erased: bool

    def __new__(cls, count: int, erased: bool) -> Forgotten:
        forgotten = super().__new__(cls, count)
        forgotten.erased = erased
        return forgotten


async def forget(fsm: FSM, user: int | None, chat: int | None) -> Forgotten:
    """Remove every record of a user or a chat, with all that a cleared one leaves behind; how many."""
    if (user is None) == (chat is None):
        raise InvalidOption("forget() takes user=... or chat=...")
    tag = f"user:{user}" if user is not None else f"chat:{chat}"
    storage = fsm.storage
    count = 0
    again: Counter[Address] = Counter()
    # What is removed is no longer listed, so each round begins anew.
    while addresses := await storage.traces(encode_namespace(fsm.bot, storage.limits), tag):
        for address in addresses:
            if again[address] == MOST_ROUNDS:
                raise StorageError(
                    f"{address.text} was removed {MOST_ROUNDS} times and is still listed for {tag!r}; either it is "
                    "written again all the time, or the storage's index of tags is damaged"
                )
            await storage.forget(address, tags=(tag,))
            again[address] += 1
            count += 1
    try:
        erased = await storage.erase(only_if_quick=True)
    except (StorageError, StoredDataError) as error:
        logger.warning("%s was forgotten, but is not erased from the disk (%s); call storage.erase()", tag, error)
        erased = False
    return Forgotten(count, erased)


async def move_chat(fsm: FSM, old: int, new: int) -> int:
    """Give the records of a chat its new id; how many.

    Each record is written under its new key before the old one is removed, so an interruption loses nothing,
    and doing it again finishes it. A conversation that is already active under the new key wins.
    """
    count = 0
    moving = [entry.key async for entry in fsm.storage.scan(fsm.bot, tag=f"chat:{old}")]
    for key in moving:
        target = keys.moved(fsm.key, key, old, new)
        if target is None or target == key:
            continue
        async with Slot(fsm.storage, fsm.bot, key, wait=fsm.wait, lease=fsm.lease) as source:
            if not source.found:
                continue
            async with Slot(fsm.storage, fsm.bot, target, wait=fsm.wait, lease=fsm.lease) as slot:
                await _take_over(source, slot, old, new)
            source.delete()
            # An expired conversation that was not handed over yet stays behind until it is.
            await source.commit(deadline=0.0)
            count += 1
    return count


async def _take_over(source: Slot, slot: Slot, old: int, new: int) -> None:
    # Half of an interrupted move was made, and the conversation went on, or ended, under its new key.
    mark = f"moved {source.version.write}" if source.version is not None else "moved"
    handled = HandledUpdates(slot)
    if slot.flow is not None or handled.has(token_of(mark), mark):
        # The caller deletes the source next, perhaps on another server.
        await slot.confirm()
        return
    where = source.place.where
    slot.place = source.place._replace(
        expired=slot.place.expired + source.place.expired, where=(new, *where[1:]) if where[:1] == (old,) else where
    )
    slot.data = {**source.data, **slot.data}
    deadline = None if source.deadline is None else max(source.deadline - source.now, 0.0)
    if slot.place.expired:
        deadline = deadline_of(slot)
    await slot.commit(
        force=True,
        memo=handled.merged(HandledUpdates(source), mark),
        tags=tuple(f"chat:{new}" if tag == f"chat:{old}" else tag for tag in source.tags),
        deadline=deadline,
        expiry=None if source.expires_at is None else max(source.expires_at - source.now, 1.0),
    )
    source.place = source.place._replace(expired=())
