"""The calls that Telegram has refused, or that could not be sent in time: kept for some days, for operators.

Each chat of a bot has a log of its own, so that ``fsm.forget`` finds it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

from stepwell.codec import values
from stepwell.errors import EncodeError, StepwellError, StoredDataError
from stepwell.log import Log
from stepwell.log.names import log_tag
from stepwell.record import DAY, REFUSED
from stepwell.storage import Storage

__all__ = ["RefusedCall", "keep_refused", "refused_calls", "refused_log"]

logger: logging.Logger = logging.getLogger(__name__)

#: How many calls of a chat are kept, for how many seconds after the last one, and the most bytes of each.
KEEP, KEPT, LARGEST = 50, 7 * DAY, 64 * 1024


class RefusedCall(NamedTuple):
    """A call that was refused."""

    number: int
    at: float
    chat: int | str | None
    update_id: int | str | None
    #: The handler, as ``module.function``.
    handler: str | None
    method: str
    #: Telegram's code; ``None`` if the call was not sent.
    code: int | None
    description: str
    #: ``None`` if it was too large to be kept.
    call: dict[str, Any] | None


def refused_log(storage: Storage, bot: str, chat: Any) -> Log:
    """Return the log of the refused calls of one chat; ``None`` for calls without a chat."""
    owners = [] if chat is None else [f"chat:{chat}"]
    if type(chat) is int and chat > 0:
        owners.append(f"user:{chat}")
    tags = tuple(log_tag(bot, owner) for owner in owners)
    return Log(storage, REFUSED, (bot, chat), ttl=KEPT, tags=tags)


async def keep_refused(storage: Storage, bot: str, call: Mapping[str, Any], **about: Any) -> None:
    """Keep a refused call. Best effort: errors are logged."""
    entry: dict[str, Any] = {"at": time.time(), **about, "call": _kept(storage, dict(call))}
    try:
        log = refused_log(storage, bot, about["chat"])
        (number,) = await log.append(entry)
        if number > KEEP:
            await log.trim(keep=KEEP)
    except StepwellError as error:
        logger.warning("a refused call could not be kept: %s", error)


async def refused_calls(storage: Storage, bot: str) -> AsyncIterator[RefusedCall]:
    """Yield the refused calls of a bot, chat by chat, the oldest of a chat first."""
    async for entry in storage.scan(REFUSED):
        if not isinstance(entry.key, tuple) or entry.key[0] != bot:
            continue
        try:
            kept = await refused_log(storage, bot, entry.key[1]).read()
        except StoredDataError as error:
            logger.warning("the refused calls of chat %s cannot be read: %s", entry.key[1], error)
            continue
        for number, found in kept:
            if found["at"] > time.time() - KEPT:
                yield RefusedCall(number, **found)


def _kept(storage: Storage, call: dict[str, Any]) -> dict[str, Any] | None:
    try:
        size = len(values.encode(call, storage.limits))
    except EncodeError:
        return None
    return call if size <= LARGEST else None
