"""Calls that Telegram refuses, or that could not be sent in time: where they come from, and the record of them.

They are kept for some days, for operators. Each chat of a bot has a log of its own, so that ``fsm.forget`` finds it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from stepwell.codec import values
from stepwell.codec.json import Struct
from stepwell.errors import BotApiError, EncodeError, StepwellError, StoredDataError
from stepwell.fsm.base import Machine
from stepwell.fsm.events import AnswerRefused, emit, subscribers
from stepwell.fsm.update import Update
from stepwell.log import Log
from stepwell.log.names import log_tag
from stepwell.record import DAY, REFUSED
from stepwell.storage import Storage

__all__ = [
    "Origin",
    "RefusedCall",
    "keep_refused",
    "refused_calls",
    "refused_log",
    "report_refusal",
    "sending",
]

logger: logging.Logger = logging.getLogger(__name__)

#: How many calls of a chat are kept, for how many seconds after the last one, and the most bytes of each.
KEEP, KEPT, LARGEST = 50, 7 * DAY, 64 * 1024


class Origin(Struct, frozen=True):
    """Where calls come from: an update, or a timer or job of a key."""

    fsm: Machine
    #: ``None`` if an update has no key.
    key: Any = None
    update: Update | None = None
    update_id: int | str | None = None
    #: ``None`` if it is not known, as for an update that was handled before.
    handler: Any = None

    @property
    def handler_name(self) -> str | None:
        """The handler as ``module.function``."""
        handler = self.handler
        if handler is None:
            return None
        return f"{handler.__module__}.{getattr(handler, '__qualname__', type(handler).__qualname__)}"


_origin: ContextVar[Origin | None] = ContextVar("stepwell_origin", default=None)


@contextmanager
def sending(origin: Origin) -> Iterator[None]:
    """Name the origin of the calls that are sent in this block."""
    before = _origin.set(origin)
    try:
        yield
    finally:
        _origin.reset(before)


async def report_refusal(
    logger: logging.Logger, call: Mapping[str, Any], error: Exception, *, bot: tuple[Storage, str] | None = None
) -> None:
    """Log a call that is refused for good. If its origin is known, keep it, and emit ``AnswerRefused``.

    ``bot``: the storage and the name of the bot, for a call that is not of a conversation.
    """
    origin = _origin.get()
    chat = call.get("chat_id")
    if chat is None and origin is not None and origin.update is not None and origin.update.chat is not None:
        chat = origin.update.chat.id
    about = {"chat": chat}
    if origin is not None:
        about["update"], about["handler"] = origin.update_id, origin.handler_name
        if origin.update is None:
            about["key"] = origin.key
    told = ", ".join(f"{name} {value}" for name, value in about.items() if value is not None)
    logger.warning("a call was not sent: %s%s", error, f" ({told})" if told else "")
    code = error.code if isinstance(error, BotApiError) else None
    description = error.description if isinstance(error, BotApiError) else str(error) or type(error).__name__
    if origin is None:
        if bot is not None:
            about = {"update_id": None, "handler": None, "method": call.get("method"), "chat": chat}
            storage, name = bot
            await keep_refused(storage, name, call, **about, code=code, description=description)
        return
    fsm = origin.fsm
    fsm.refused += 1
    known = {"update_id": origin.update_id, "handler": origin.handler_name, "method": call.get("method"), "chat": chat}
    if fsm.subscribers or subscribers:
        about = {"update": origin.update, "code": code, "description": description, "error": error}
        emit(AnswerRefused, fsm, origin.key, fsm.address_of(origin.key), **known, **about)
    await keep_refused(fsm.storage, fsm.bot, call, **known, code=code, description=description)


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
