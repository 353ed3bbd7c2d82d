"""Turns in aiogram: what no handler of a dispatcher takes becomes part of a turn."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiogram import BaseMiddleware, Bot, Dispatcher
from aiogram.dispatcher.event.bases import UNHANDLED
from aiogram.types import TelegramObject

from stepwell.adapters.aiogram.calls import client_of
from stepwell.adapters.aiogram.objects import as_json
from stepwell.adapters.framework.turns import AttachedTurns
from stepwell.errors import UsageError
from stepwell.options import check_instance
from stepwell.turns import Turns

__all__ = ["attach_turns"]

logger: logging.Logger = logging.getLogger(__name__)

#: The kinds of updates that turns take.
KINDS: Final = (
    "message", "edited_message", "business_message", "edited_business_message", "callback_query",
    "stopped_message_generation",
)  # fmt: skip


def attach_turns(dispatcher: Dispatcher, turns: Turns) -> None:
    """Pass on what no handler of a dispatcher takes, as ``turns.attach(dispatcher)`` does.

    Handlers come first. A stop, and the answer to a question of a turn, act at once, before the events isolation. The
    turns run from the startup to the shutdown of the dispatcher, and their calls are made by its bot.

    Raises ``UsageError`` if these turns are attached already.

    Example::

        from aiogram import Dispatcher
        from stepwell.adapters.aiogram import attach_turns

        dispatcher = Dispatcher()
        attach_turns(dispatcher, turns)
    """
    check_instance(dispatcher, Dispatcher, "attach_turns(dispatcher, turns) takes a Dispatcher, the root, got {}")
    check_instance(turns, Turns, "attach_turns(dispatcher, turns) takes Turns, got {}")
    middlewares = dispatcher.update.outer_middleware
    present = list(middlewares)
    if any(isinstance(each, _PassingOn) and each.turns is turns for each in present):
        raise UsageError("these turns are attached to this dispatcher already")
    passing_on = _PassingOn(turns)
    # The first middleware calls the error handlers. The others may wait for another update, as the FSM does.
    for each in present[1:]:
        middlewares.unregister(each)
    middlewares.register(passing_on)
    for each in present[1:]:
        middlewares.register(each)
    for kind in KINDS:
        if kind in dispatcher.observers:
            # Polling asks Telegram only for kinds that have a handler.
            dispatcher.observers[kind].register(_nothing, _never)
    dispatcher.startup.register(passing_on.start)
    dispatcher.shutdown.register(passing_on.stop)


class _PassingOn(BaseMiddleware):
    """Gives updates to turns: those that stop or decide before all handlers, and those that no handler takes."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self._attached = AttachedTurns(turns)
        self._bot: Bot | None = None

    async def __call__(
        self,
        handler: Callable[[TelegramObject, dict[str, Any]], Awaitable[Any]],
        event: TelegramObject,
        data: dict[str, Any],
    ) -> Any:
        bot: Bot = data["bot"]
        if self._bot is None:
            # Not every webhook passes the bot to the startup.
            await self._run(bot)
        if self._bot is None or bot.id != self._bot.id:
            return await handler(event, data)
        raw, attached = as_json(event), self._attached
        if attached.is_control(raw) and await attached.control(raw):
            return None
        result = await handler(event, data)
        if result is UNHANDLED and await attached.admit(raw):
            return None
        return result

    async def start(self, **data: Any) -> None:
        bots = list({bot.id: bot for bot in (*data.get("bots", ()), data.get("bot")) if bot is not None}.values())
        if len(bots) > 1:
            raise UsageError("turns belong to one bot, and this dispatcher has several; give each a dispatcher")
        for bot in bots:
            await self._run(bot)

    async def stop(self) -> None:
        await self._attached.stop()

    async def _run(self, bot: Bot) -> None:
        await self._attached.start(client_of(bot))
        self._bot = bot


async def _nothing(event: TelegramObject) -> None:
    """The handler of a kind, which is never called."""


def _never(event: TelegramObject) -> bool:
    return False
