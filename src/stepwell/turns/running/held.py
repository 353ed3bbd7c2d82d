"""The record of a conversation under the claim of the runner of its turn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from stepwell import Storage
from stepwell.engine import (
    KEEP,
    LAST_ENTRY,
    TURNS,
    Address,
    Change,
    Get,
    Seal,
    Slot,
    Stored,
    backoff,
    decode_key,
    replaced,
    tail_of,
)
from stepwell.errors import RecordReplaced, StorageClosed, StorageError, StorageUnavailable
from stepwell.turns.record import ROOM_TO_END, WORKING_PARTS, TurnTable, change_of, is_web, send_part, table_of

__all__ = ["HeldRecord", "sent"]

T = TypeVar("T")

logger: logging.Logger = logging.getLogger(__name__)

#: Parts to write, or a function of the table before and after the write that returns them.
Parts: TypeAlias = Callable[[TurnTable, TurnTable], Mapping[str, str | None]] | Mapping[str, str | None]
#: Seconds before a write is tried again while the storage is away: the first pause, and the longest.
PAUSES = (0.1, 5.0)


def sent(calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the calls that are sent. Those to a page are not: it reads the transcript."""
    return [call for call in calls if not is_web(call.get("chat_id"))]


class HeldRecord:
    """Reads and writes the record of a conversation while this process has its claim."""

    def __init__(self, name: str, slot: Slot) -> None:
        self.slot: Slot = slot
        self.storage: Storage = slot.storage
        self.address: Address = slot.address
        self.seal: Seal = slot.storage.seal(slot.address)
        self.table: TurnTable = TurnTable()
        #: All parts but the history, as sealed texts.
        self.parts: dict[str, str] = {}
        #: Calls are sent in order, also if two tasks of the handler ask at once.
        self.sending: asyncio.Lock = asyncio.Lock()
        self._name = name
        key = decode_key(slot.address.key)
        #: The name of the bot.
        self.bot: str = key[0]
        self._tail = tail_of(slot.storage, TURNS, key, slot.address)

    async def load(self) -> None:
        """Read the record and its working parts."""
        stored = await self._get(WORKING_PARTS)
        self.table = table_of(self.seal, stored)
        self.parts = {} if stored is None else dict(stored.parts or {})

    async def read_parts(self, names: Sequence[str]) -> None:
        """Read parts that others have added."""
        stored = await self._get(tuple(names))
        self.parts.update({} if stored is None else stored.parts or {})

    def calls_after(self, before: TurnTable, calls: Sequence[Mapping[str, Any]]) -> dict[str, str | None]:
        """Return the parts with calls to send, after those of a table."""
        names = [send_part(before.next_call + place) for place in range(len(calls))]
        return {name: self.seal.seal("p", name, call) for name, call in zip(names, calls, strict=True)}

    async def _get(self, parts: Any) -> Stored | None:
        stored: Stored | None = await self.persist(lambda: self.storage.perform(Get(self.address, parts)))
        self._check_base(stored)
        return stored

    def _check_base(self, stored: Stored | None) -> None:
        """Raise ``RecordReplaced`` if the record was deleted since it was claimed."""
        if self.slot.base and (stored is None or stored.base != self.slot.base):
            raise RecordReplaced(self.address.text)

    async def write(
        self,
        change: Callable[[TurnTable], TurnTable | None],
        parts: Parts | None = None,
        *,
        entries: Sequence[bytes] = (),
        keep: Callable[[TurnTable], bool] = lambda table: True,
        tags: Callable[[tuple[str, ...]], tuple[str, ...]] | None = None,
    ) -> bool:
        """Change the table, and parts beside it, and return whether anything was written: not if ``change`` does not.

        ``change`` gets the table as it is stored now, and again if another writer was faster. ``entries``: JSON to
        append to the history. ``keep``: whether the claim stays after the write. ``tags``: returns the tags after it.
        While the storage is away the write is tried again. Raises ``LeaseLost`` or ``RecordReplaced``.
        """
        written: tuple[TurnTable, Mapping[str, str | None]] = (self.table, {})
        stays, repeats, mark = True, False, self.storage.ids()

        def decide(stored: Stored | None) -> Change | None:
            nonlocal written, stays, repeats
            self._check_base(stored)
            before = table_of(self.seal, stored)
            repeats = before.write == mark
            if repeats:
                # It was applied, and only its answer was lost.
                return None
            after = change(before)
            if after is None:
                self.table = before
                return None
            after = replaced(after, write=mark)
            chosen = dict((parts(before, after) if callable(parts) else parts) or {})
            written = after, dict(chosen)
            stays = keep(after)
            known = () if stored is None else stored.tags
            wanted = known if tags is None else tags(known)
            made = change_of(
                self.storage, self.address, self._name, after, now=self.slot.time(), parts=chosen,
                tags=KEEP if wanted == known else wanted, room=0 if entries else ROOM_TO_END,
            )  # fmt: skip
            return self._tail.with_entries(made, stored, entries) if entries else made

        def write() -> Awaitable[bool]:
            return self.slot.edit(decide, parts=LAST_ENTRY if entries else False, keep=lambda: stays)

        if not await self.persist(write) and not repeats:
            return False
        self.table, changed = written
        for name, text in changed.items():
            if text is None:
                self.parts.pop(name, None)
            else:
                self.parts[name] = text
        return True

    async def persist(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do some work of the storage, and try it again while the storage is away."""
        failures = 0
        while True:
            try:
                return await work()
            except StorageError as error:
                final = isinstance(error, StorageClosed) or (isinstance(error, StorageUnavailable) and error.final)
                if final or self.slot.lost:
                    raise
                failures += 1
                if failures == 1:
                    logger.warning("%s waits for the storage: %s", self.address.text, error)
                await asyncio.sleep(backoff(failures, *PAUSES))
