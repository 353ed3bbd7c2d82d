"""A bot of the cookbook that polls a local Bot API in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stepwell.botapi import Bot, BotAPI
from stepwell.fsm import Router
from stepwell.telegram import run_polling

__all__ = ["running"]


@asynccontextmanager
async def running(router: Router, api: BotAPI, bot: Bot) -> AsyncIterator[None]:
    """Run a bot within a block. At its end the process of the bot ends."""
    started = asyncio.Event()
    polling = run_polling(router, bot.token, api=api.url, limits=None, on_start=lambda me: started.set())
    task = asyncio.create_task(polling)
    try:
        waiting = asyncio.create_task(started.wait())
        await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))
