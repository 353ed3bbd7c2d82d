"""Waits for the updates of bots that run in other processes."""

from __future__ import annotations

from stepwell import open_storage
from stepwell.record import INBOX
from stepwell.storage.operations import Get
from tests.until import until


async def inbox_emptied(url: str) -> None:
    """Wait until no update is unfinished."""
    async with open_storage(url) as storage:

        async def unfinished() -> list[object]:
            inboxes = [await storage.perform(Get(entry.address, parts=True)) async for entry in storage.scan(INBOX)]
            return [inbox.parts for inbox in inboxes if inbox.parts]

        await until(unfinished, lambda found: not found)
