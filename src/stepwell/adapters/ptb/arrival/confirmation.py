"""Confirm an update to Telegram when it is handled, instead of when it arrives."""

from __future__ import annotations

import asyncio

from telegram.error import TelegramError

from stepwell.adapters.framework.retry import TEMPORARY

__all__ = ["ConfirmingQueue", "confirm_update"]

#: The updates whose sender waits for their end, by the id of the object.
_waiting: dict[int, asyncio.Future[None]] = {}


class NotHandled(TelegramError):
    """An update could not be written. Polling and webhooks let Telegram deliver it again."""


class ConfirmingQueue:
    """The queue of an updater. ``put`` returns when the update is handled."""

    def __init__(self, queue: asyncio.Queue[object]) -> None:
        self._queue = queue

    async def put(self, update: object) -> None:
        handled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        _waiting[id(update)] = handled
        try:
            await self._queue.put(update)
            await handled
        finally:
            del _waiting[id(update)]


def confirm_update(update: object, error: Exception | None) -> None:
    """Note that an update was handled, or that it could not be written."""
    handled = _waiting.get(id(update))
    if handled is not None and not handled.done():
        if isinstance(error, TEMPORARY):
            handled.set_exception(NotHandled(f"the update could not be written: {error}"))
        else:
            handled.set_result(None)
