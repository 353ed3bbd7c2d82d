"""Calls that Telegram refuses, and the update or timer whose answers they are."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from stepwell.codec.json import Struct
from stepwell.errors import BotApiError
from stepwell.fsm.base import Machine
from stepwell.fsm.events import AnswerRefused, emit, subscribers
from stepwell.fsm.refused import keep_refused
from stepwell.fsm.update import Update
from stepwell.storage import Storage

__all__ = ["Origin", "report_refusal", "sending"]


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
