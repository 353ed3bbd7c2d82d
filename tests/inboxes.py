"""Waits for the updates of bots that run in other processes."""

from __future__ import annotations

import asyncio

from stepwell import open_storage
from stepwell.record import INBOX
from stepwell.storage.operations import Get


async def inbox_emptied(url: str) -> None:
    """Wait until no update is unfinished."""
    async with asyncio.timeout(30), open_storage(url) as storage:
        while True:
            inboxes = [await storage.perform(Get(entry.address, parts=True)) async for entry in storage.scan(INBOX)]
            if not any(inbox.parts for inbox in inboxes):
                return
            await asyncio.sleep(0.02)
