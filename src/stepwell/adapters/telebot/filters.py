"""Filters on the conversation: ``@bot.message_handler(fsm_state=Registration.get_name)``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from telebot import asyncio_filters, custom_filters

from stepwell.adapters.telebot.current import fsm_of
from stepwell.fsm import filters as conditions

__all__ = ["CONDITIONS", "AsyncBotFilter", "BotFilter", "conditions_of"]


def _in_flow(given: Any) -> conditions.Filter:
    return conditions.fsm_in_flow() if given else ~conditions.fsm_in_flow()


#: The arguments of a handler, and the condition for one value.
CONDITIONS: dict[str, Callable[[Any], conditions.Filter]] = {
    "fsm_flow": conditions.fsm_flow,
    "fsm_state": conditions.fsm_state,
    "fsm_in_flow": _in_flow,
}


class BotFilter(custom_filters.AdvancedCustomFilter):
    """A filter of ``TeleBot`` on the conversation. With a list, one value of it has to match."""

    def __init__(self, key: str) -> None:
        self.key = key

    def check(self, message: Any, text: Any) -> bool:
        return _matches(self.key, message, text)


class AsyncBotFilter(asyncio_filters.AdvancedCustomFilter):
    """A filter of ``AsyncTeleBot`` on the conversation. With a list, one value of it has to match."""

    def __init__(self, key: str) -> None:
        self.key = key

    async def check(self, message: Any, text: Any) -> bool:
        return _matches(self.key, message, text)


def conditions_of(bot: object) -> Iterator[conditions.Filter]:
    """Yield the filters on the conversation of a bot's handlers."""
    for name, handlers in vars(bot).items():
        if not name.endswith("_handlers") or not isinstance(handlers, list):
            continue
        for handler in handlers:
            # Middlewares are functions.
            for key, given in handler.get("filters", {}).items() if isinstance(handler, dict) else ():
                if key in CONDITIONS and given is not None:
                    yield from _conditions(key, given)


def _matches(key: str, event: Any, given: Any) -> bool:
    ctx = fsm_of(event)
    return any(condition(ctx) for condition in _conditions(key, given))


def _conditions(key: str, given: Any) -> Iterator[conditions.Filter]:
    for value in given if isinstance(given, list) else [given]:
        yield CONDITIONS[key](value)
