"""Turns that have failed: they are kept with their messages until they are retried or dropped."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from stepwell.engine import KEEP, TURNS, Address, Change, Stored, decode_key, replaced
from stepwell.turns.base import TurnsBase
from stepwell.turns.record import CollectWindow, WaitingMessage, change_of, failed_part, message_part, table_of

__all__ = ["FailedTurns"]


class FailedTurns:
    """The failed turns of one ``Turns``."""

    def __init__(self, turns: TurnsBase) -> None:
        self._turns = turns

    async def addresses(self, state: str | None, *, failed: bool) -> AsyncIterator[Address]:
        """Yield the records of conversations."""
        turns = self._turns
        options: dict[str, Any] = {"state": state} if state is not None else {}
        if failed:
            options["tag"] = turns.tag("failed")
        async for entry in turns.storage.scan(TURNS, flow=turns.name, **options):
            key = decode_key(entry.address.key)
            if isinstance(key, tuple) and key[0] == turns.bot:
                yield entry.address

    async def retry(self, turn_id: str) -> bool:
        """Let the messages of a failed turn wait again."""
        return await self._take(turn_id, again=True)

    async def drop(self, turn_id: str) -> bool:
        """Remove a failed turn."""
        return await self._take(turn_id, again=False)

    async def _take(self, turn_id: str, *, again: bool) -> bool:
        async for address in self.addresses(None, failed=True):
            if await self._take_from(address, turn_id, again=again):
                self._turns.wake()
                return True
        return False

    async def _take_from(self, address: Address, turn_id: str, *, again: bool) -> bool:
        turns, storage, part = self._turns, self._turns.storage, failed_part(turn_id)
        seal, now = storage.seal(address), await turns.clock.now()

        def decide(stored: Stored | None) -> Change | None:
            table = table_of(seal, stored)
            if stored is None or turn_id not in table.failed or part not in (stored.parts or {}):
                return None
            left = tuple(each for each in table.failed if each != turn_id)
            parts: dict[str, str | None] = {part: None}
            kept = seal.value("p", part, (stored.parts or {})[part])
            if not again:
                parts |= dict.fromkeys(kept["parts"])
            else:
                messages, back = kept["messages"], []
                for place, message in enumerate(messages):
                    seq = table.next + place
                    name = message_part(seq)
                    parts[name] = seal.seal("p", name, message)
                    back.append(WaitingMessage(seq, None, None, table.next, 0, now, again=turn_id))
                # Messages that wait are newer, so these come first.
                table = replaced(
                    table, waiting=(*back, *table.waiting), next=table.next + len(back),
                    window=table.window or CollectWindow(now, now),
                )  # fmt: skip
            after = replaced(table, failed=left)
            tags = turns.tags_with(stored.tags, failed=bool(left))
            return change_of(
                storage, address, turns.name, after, now=now, parts=parts, tags=KEEP if tags == stored.tags else tags
            )

        return await storage.edit(address, decide, parts=(part,)) is not None
