"""The updates that are set aside, because they cannot be read or end their process, and those that failed."""

from __future__ import annotations

import logging
import time
import traceback
from typing import Any

from stepwell.codec.json import to_json
from stepwell.errors import StepwellError
from stepwell.fsm import FSM, Update, UpdateSetAside
from stepwell.fsm.events import emit, subscribers
from stepwell.log import Log
from stepwell.record import DAY
from stepwell.storage import Storage
from stepwell.telegram.calls.reading import number_in

__all__ = ["ASIDE", "FAILED", "failed_log", "keep_failed", "set_aside", "text_of"]

logger: logging.Logger = logging.getLogger("stepwell.telegram")

#: The key of the log of a bot that has them.
ASIDE = "updates set aside"
#: How many are kept, and how many characters of each.
KEEP = 500
LONGEST = 100_000
#: The tag of the logs of updates whose handler has raised, one for each chat and user, so that ``fsm.forget`` finds
#: them; how many each keeps, for how many seconds after the last one, and how many characters of a traceback.
FAILED = "failed updates"
KEEP_FAILED, KEPT_FAILED, LONGEST_TRACEBACK = 20, 7 * DAY, 8_000


async def set_aside(fsm: FSM, found: Any, *, why: str, attempts: int = 0) -> None:
    """Keep an update, or the text of one, that is skipped; log that, and emit an event. Raises ``StorageError``."""
    storage, bot = fsm.storage, fsm.bot
    number, chat = number_in(found), _chat_in(found)
    text = text_of(found)[:LONGEST].encode(errors="replace").decode()
    log = Log(storage, bot, ASIDE)
    entry = {
        "update_id": number, "chat": chat, "attempts": attempts, "why": why, "update": text, "at": time.time(),
    }  # fmt: skip
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


def failed_log(storage: Storage, bot: str, chat: int | None, user: int | None) -> Log:
    """Return the log of the updates of a user in a chat whose handler has raised."""
    owners = [f"{name}:{peer}" for name, peer in (("chat", chat), ("user", user)) if peer is not None]
    return Log(storage, bot, (FAILED, chat, user), ttl=KEPT_FAILED, tags=(FAILED, *owners))


async def keep_failed(fsm: FSM, update: Update, error: BaseException) -> None:
    """Keep an update whose handler has raised, for operators. Best effort: errors are logged."""
    chat, user = update.chat, update.user
    chat_id, user_id = None if chat is None else chat.id, None if user is None else user.id
    found = "".join(traceback.format_exception(error))[-LONGEST_TRACEBACK:].encode(errors="replace").decode()
    why = f"its handler raised {type(error).__name__}"
    entry = {
        "update_id": update.update_id, "chat": chat_id, "attempts": 1, "why": why,
        "update": text_of(update.raw)[:LONGEST], "traceback": found, "at": time.time(),
    }  # fmt: skip
    try:
        log = failed_log(fsm.storage, fsm.bot, chat_id, user_id)
        (number,) = await log.append(entry)
        if number > KEEP_FAILED:
            await log.trim(keep=KEEP_FAILED)
    except StepwellError as problem:
        logger.warning("the failed update %s could not be kept: %s", update.update_id, problem)


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
