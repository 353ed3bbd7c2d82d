"""Records of users and chats: find them, delete them, and move those of a chat that gets a new id."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

from stepwell._secrets import quoted
from stepwell.codec import encode_namespace
from stepwell.errors import InvalidOption, StorageError, StoredDataError
from stepwell.fsm import keys
from stepwell.fsm.base import Machine
from stepwell.fsm.conversation.duplicates import HandledUpdates, token_of
from stepwell.fsm.conversation.extension import end, extension_of, keep
from stepwell.fsm.flows.description import name_of
from stepwell.fsm.timers.expiry import is_over
from stepwell.log.names import log_tag
from stepwell.record import AUDIT, BY_BOT, Address
from stepwell.slot import Slot
from stepwell.storage import ANY, Entry

__all__ = ["Forgotten", "find", "forget", "forgotten_places", "move_chat"]

logger: logging.Logger = logging.getLogger(__name__)

#: How often ``forget`` deletes one record that is listed again.
MOST_ROUNDS = 20
#: Collects the addresses that ``forget`` deletes in this task and the tasks that it starts, if a runner has set it.
forgotten_places: ContextVar[set[str] | None] = ContextVar("stepwell_forgotten_places", default=None)


async def find(fsm: Machine, user: int | None, chat: int | None, flow: Any, state: Any) -> AsyncIterator[Entry]:
    """Find records. See ``FSM.find``."""
    tags = [f"{name}:{peer}" for name, peer in (("user", user), ("chat", chat)) if peer is not None]
    flow_name = flow if flow is None or flow is ANY else name_of(flow)
    if flow_name is ANY and state is not ANY and getattr(state, "flow_name", None) is not None:
        flow_name = state.flow_name
    now = fsm.storage.clock or time.time
    state_name = state if state is None or state is ANY else str(state)
    async for entry in fsm.storage.scan(fsm.bot, flow=flow_name, state=state_name, tag=tags[0] if tags else None):
        if set(tags) <= set(entry.tags) and not is_over(entry, now()):
            yield entry


class Forgotten(int):
    """The number of records that ``forget`` deleted."""

    #: They are erased from the storage's disk too. If not, call ``await fsm.storage.erase()``. A storage on a server
    #: never erases: the server has its own logs and copies.
    erased: bool

    def __new__(cls, count: int, erased: bool) -> Forgotten:
        forgotten = super().__new__(cls, count)
        forgotten.erased = erased
        return forgotten


async def forget(fsm: Machine, user: int | None, chat: int | None) -> Forgotten:
    """Delete all records of a user or a chat. See ``FSM.forget``."""
    if (user is None) == (chat is None):
        raise InvalidOption("forget() takes user=... or chat=...")
    tag = f"user:{user}" if user is not None else f"chat:{chat}"
    storage = fsm.storage
    count = 0
    again: Counter[Address] = Counter()
    places = forgotten_places.get()
    of_log = log_tag(fsm.bot, tag)
    places_of = ((encode_namespace(fsm.bot, storage.limits), tag), *((each, of_log) for each in (*BY_BOT, AUDIT)))
    for namespace, its_tag in places_of:
        # Deleted records are not listed again, so each round starts from the beginning.
        while addresses := await storage.traces(namespace, its_tag):
            for address in addresses:
                if again[address] == MOST_ROUNDS:
                    raise StorageError(
                        f"{address.text} was deleted {MOST_ROUNDS} times and is still listed for "
                        f"{quoted(tag)}; either a "
                        "process keeps writing it, or the storage's index of tags is damaged"
                    )
                if places is not None:
                    places.add(address.text)
                await storage.forget(address, tags=(its_tag,))
                again[address] += 1
                count += 1
    try:
        erased = await storage.erase(only_if_quick=True)
    except (StorageError, StoredDataError) as error:
        logger.warning("%s was deleted, but not erased from the disk (%s); call storage.erase()", tag, error)
        erased = False
    return Forgotten(count, erased)


async def move_chat(fsm: Machine, old: int, new: int) -> int:
    """Move the records of a chat to its new id. See ``FSM.move_chat``.

    Each record is written under its new key before the old record is deleted, so that an interrupted move loses nothing
    and can be repeated.
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
            end(source)
            # Entries of expired conversations stay at the old key until they are handed over.
            await source.commit()
            count += 1
    return count


async def _take_over(source: Slot, slot: Slot, old: int, new: int) -> None:
    # Remembered at the target, so that a repeated move does not bring back a conversation that has ended there.
    mark = f"moved {source.version.write}" if source.version is not None else "moved"
    handled = HandledUpdates(slot)
    if slot.flow is not None or handled.has(token_of(mark)):
        # The caller deletes the source next, perhaps on another server.
        await slot.confirm()
        return
    there, taken = extension_of(slot), extension_of(source)
    where = taken.where
    slot.head = source.head
    keep(
        slot,
        expired=there.expired + taken.expired,
        outbox=there.outbox + taken.outbox,
        albums=there.albums + taken.albums,
        where=(new, *where[1:]) if where[:1] == (old,) else where,
    )
    slot.data = {**source.data, **slot.data}
    await slot.commit(
        force=True,
        memo=handled.merged(HandledUpdates(source), mark),
        tags=tuple(f"chat:{new}" if tag == f"chat:{old}" else tag for tag in source.tags),
        expiry=None if source.expires_at is None else max(source.expires_at - source.now, 1.0),
    )
    keep(source, expired=(), outbox=(), albums=())
