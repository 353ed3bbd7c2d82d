"""Confirm an update to Telegram when it is handled, instead of when it arrives."""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

from telegram.error import TelegramError
from telegram.ext import Application

from stepwell.adapters.retry import TEMPORARY
from stepwell.errors import InvalidOption

__all__ = ["confirm_handled", "confirm_update"]

_Application: TypeAlias = Application[Any, Any, Any, Any, Any, Any]

#: The updates whose sender waits for their end, by the id of the object.
_waiting: dict[int, asyncio.Future[None]] = {}


def confirm_handled(application: _Application) -> None:
    """Confirm each update to Telegram when it is handled, so that an update is delivered again after a kill.

    python-telegram-bot confirms an update when it arrives. Call this before ``run_polling`` or ``run_webhook``.
    A webhook is then answered when its update is handled. Polling handles updates one after the other, also with
    ``concurrent_updates``. If the storage is unavailable or a lease was lost, the update is delivered again too.
    """
    if application.updater is None:
        raise InvalidOption(
            "confirm_handled(application) needs an application with an updater; without one, answer the webhook after "
            "'await application.process_update(update)'"
        )
    queue: Any = _ConfirmingQueue(application.update_queue)
    application.updater.update_queue = queue


class NotHandled(TelegramError):
    """An update could not be written. Polling and webhooks let Telegram deliver it again."""


class _ConfirmingQueue:
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
