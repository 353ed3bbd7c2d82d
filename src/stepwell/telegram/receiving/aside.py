"""The updates that are set aside, because they cannot be read or end their process."""

from __future__ import annotations

import logging
from typing import Any

from stepwell.codec.json import to_json
from stepwell.fsm import FSM, Update, UpdateSetAside
from stepwell.fsm.events import emit, subscribers
from stepwell.log import Log
from stepwell.telegram.calls.reading import number_in

__all__ = ["ASIDE", "set_aside", "text_of"]

logger: logging.Logger = logging.getLogger("stepwell.telegram")

#: The key of the log of a bot that has them.
ASIDE = "updates set aside"
#: How many are kept, and how many characters of each.
KEEP = 500
LONGEST = 100_000


async def set_aside(fsm: FSM, found: Any, *, why: str, attempts: int = 0) -> None:
    """Keep an update, or the text of one, that is skipped; log that, and emit an event. Raises ``StorageError``."""
    storage, bot = fsm.storage, fsm.bot
    number, chat = number_in(found), _chat_in(found)
    text = text_of(found)[:LONGEST].encode(errors="replace").decode()
    log = Log(storage, bot, ASIDE)
    entry = {"update_id": number, "chat": chat, "attempts": attempts, "why": why, "update": text}
    (place,) = await log.append(entry)
    if place % 50 == 0:
        await log.trim(keep=KEEP)
    logger.error(
        "update %s of chat %s is skipped after %d attempts, because %s; it is entry %d of Log(storage, %r, %r)",
        number, chat, attempts, why, place, bot, ASIDE,
    )  # fmt: skip
    fsm.aside += 1
    if fsm.subscribers or subscribers:
        emit(UpdateSetAside, fsm, None, None, update_id=number, chat=chat, why=why, attempts=attempts)


def text_of(found: Any) -> str:
    """Return the text of an update for ``set_aside``."""
    if isinstance(found, str):
        return found
    try:
        return to_json(found).decode()
    except (ValueError, TypeError, OverflowError, RecursionError):
        return _shown(found)


def _shown(found: Any) -> str:
    try:
        return repr(found)
    except (ValueError, RecursionError):
        return type(found).__name__


def _chat_in(found: Any) -> int | None:
    chat = Update.of(found).chat if isinstance(found, dict) else None
    return None if chat is None else chat.id
