"""The flood limits: which calls send messages, and when they are too many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepwell.botapi.bots import Bot
from stepwell.botapi.errors import Refusal
from stepwell.botapi.params import Params
from stepwell.botapi.world import World

__all__ = ["check"]

#: Calls that leave no message in the chat.
_NO_MESSAGE = frozenset({"sendchataction", "sendmessagedraft", "sendrichmessagedraft"})
_PREFIXES = ("send", "copy", "forward", "editmessage")
#: The parameter with one item for each message.
_LISTS = {"sendmediagroup": "media", "copymessages": "message_ids", "forwardmessages": "message_ids"}


def check(world: World, bot: Bot, name: str, params: Params) -> Callable[[], None]:
    """Raise the refusal for a message too many; return a function that counts the messages when they were sent."""
    limits, method = world.limits, name.lower()
    if limits is None or method in _NO_MESSAGE or not method.startswith(_PREFIXES):
        return lambda: None
    count, chat, now = _count(method, params), _chat(world, bot, params), world.clock()
    wait = bot.sent.retry_after(limits, chat, count, now, paid=params.flag("allow_paid_broadcast"))
    if wait:
        raise Refusal(429, f"Too Many Requests: retry after {wait}", retry_after=wait)
    return lambda: bot.sent.add(limits, chat, count, now)


def _count(method: str, params: Params) -> int:
    items: Any = None
    if method in _LISTS:
        try:
            items = params.json(_LISTS[method], list)
        except Refusal:
            # The method refuses it.
            items = None
    return len(items) if items else 1


def _chat(world: World, bot: Bot, params: Params) -> int | None:
    """Return the id of the chat; ``None`` for an inline message, or if the method refuses the chat."""
    try:
        return world.room_for(bot, params.chat_id()).id
    except Refusal:
        return None
