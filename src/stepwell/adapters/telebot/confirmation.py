"""Confirm an update to Telegram when it is handled, instead of when it arrives."""

from __future__ import annotations

import asyncio
from typing import Any

from telebot.async_telebot import AsyncTeleBot

from stepwell.adapters.framework.retry import TEMPORARY
from stepwell.options import check_instance

__all__ = ["confirm_handled"]


def confirm_handled(bot: AsyncTeleBot) -> None:
    """Let the polling of a bot confirm updates when they are handled, so that they are delivered again after a kill.

    telebot confirms updates when they arrive. After this call, it gets the next updates when those before are handled.
    If the storage is unavailable or a lease was lost, the updates are delivered again too. ``TeleBot`` does the same
    with ``threaded=False``.

    Example::

        from telebot.async_telebot import AsyncTeleBot
        from stepwell.adapters.telebot import confirm_handled

        bot = AsyncTeleBot("42:token")
        confirm_handled(bot)
    """
    check_instance(
        bot,
        AsyncTeleBot,
        "confirm_handled(bot) takes an AsyncTeleBot, got {}; TeleBot(token, threaded=False) handles an update before "
        "it confirms it",
    )
    # Not typed in telebot.
    methods: Any = bot
    get_updates, process = methods.get_updates, methods.process_new_updates
    handled = asyncio.Event()
    handled.set()

    async def get_when_handled(*args: Any, **kwargs: Any) -> Any:
        offset = methods.offset
        await handled.wait()
        if methods.offset != offset:
            # Updates that were being handled could not be written.
            kwargs["offset"] = methods.offset
        updates = await get_updates(*args, **kwargs)
        if updates:
            handled.clear()
        return updates

    async def process_and_confirm(updates: Any) -> None:
        try:
            await process(updates)
        except TEMPORARY:
            methods.offset = updates[0].update_id
            raise
        finally:
            handled.set()

    methods.get_updates, methods.process_new_updates = get_when_handled, process_and_confirm
