"""The table of supported Bot API methods."""

from __future__ import annotations

import inspect
import logging
from typing import Any

from stepwell.botapi.call import Call, Method
from stepwell.botapi.errors import ConnectionCut, Refusal
from stepwell.botapi.http.webhook import Webhooks
from stepwell.botapi.methods import delivery, files, payments, profile, queries
from stepwell.botapi.methods.chats import chat, invites, members, topics
from stepwell.botapi.methods.messages import (
    copies,
    drafts,
    edits,
    flood,
    locations,
    media,
    polls,
    reactions,
    rich,
    text,
)
from stepwell.botapi.official import ALIASES, official_name
from stepwell.botapi.params import Params
from stepwell.botapi.world import Bot, World

__all__ = ["METHODS", "NO_EFFECT", "perform"]

logger: logging.Logger = logging.getLogger(__name__)

#: Accepted and answered with ``true``, nothing else.
NO_EFFECT: frozenset[str] = frozenset({"logOut", "close"})


def _nothing(call: Call) -> bool:
    return True


METHODS: dict[str, Method] = {
    **delivery.METHODS,
    **profile.METHODS,
    **queries.METHODS,
    **text.METHODS,
    **drafts.METHODS,
    **rich.METHODS,
    **locations.METHODS,
    **media.METHODS,
    **polls.METHODS,
    **edits.METHODS,
    **copies.METHODS,
    **files.METHODS,
    **chat.METHODS,
    **members.METHODS,
    **invites.METHODS,
    **topics.METHODS,
    **reactions.METHODS,
    **payments.METHODS,
    **dict.fromkeys(NO_EFFECT, _nothing),
}
_BY_LOWER_NAME = {name.lower(): method for name, method in METHODS.items()}
_BY_LOWER_NAME |= {old.lower(): METHODS[name] for old, name in ALIASES.items() if name in METHODS}


async def perform(world: World, webhooks: Webhooks, bot: Bot, name: str, params: Params) -> Any:
    """Run a method and record the call. Raises ``Refusal`` or ``ConnectionCut``."""
    noted = {"method": name, **params.given, **{field: upload.name for field, upload in params.files.items()}}
    try:
        failure = bot.failure_of(name, params.given.get("chat_id"))
        if failure is not None and failure.refusal is not None:
            raise failure.refusal
        if failure is not None and not failure.after:
            raise ConnectionCut
        method = _find(name)
        sent = flood.check(world, bot, name, params)
        result = method(Call(world, webhooks, bot, params))
        result = await result if inspect.iscoroutine(result) else result
        sent()
    except Refusal as refusal:
        world.called(bot, {**noted, "answer": refusal.json()})
        raise
    if name.lower() != "getupdates":
        world.called(bot, {**noted, "answer": {"ok": True, "result": result}})
    if failure is not None:
        raise ConnectionCut
    return result


def _find(name: str) -> Method:
    """Return a method by its name in any case; raise a 501 for a method that only Telegram has."""
    method = _BY_LOWER_NAME.get(name.lower())
    if method is not None:
        return method
    official = official_name(name)
    if official is None:
        raise Refusal(404, "Not Found: method not found")
    logger.warning("a bot called %s, which the local Bot API does not support", official)
    raise Refusal(501, f"Not Implemented: method '{official}' is not supported by the local Bot API")
