"""Calls of the Bot API that are given as a dict, made by aiogram."""

from __future__ import annotations

from typing import Any

from aiogram import Bot
from aiogram import methods as api
from aiogram.exceptions import (
    ClientDecodeError,
    TelegramEntityTooLarge,
    TelegramNetworkError,
    TelegramRetryAfter,
    TelegramServerError,
)

from stepwell.engine import quoted
from stepwell.errors import UsageError

__all__ = ["call_bot", "pause_of"]


async def call_bot(bot: Bot, call: dict[str, Any]) -> Any:
    """Make a call."""
    params = dict(call)
    name: str = params.pop("method")
    method = getattr(api, name[:1].upper() + name[1:], None)
    if method is None:
        raise UsageError(
            f"this release of aiogram has no method {quoted(name)}; upgrade aiogram, or use another method"
        )
    return await bot(method(**params))


def pause_of(error: Exception) -> float | None:
    """Return the seconds after which a call with this error may be made again; ``None`` if it would fail again."""
    if isinstance(error, TelegramRetryAfter):
        return float(error.retry_after)
    if isinstance(error, ClientDecodeError):
        # The page of a proxy. If only the result cannot be read, the call was made.
        return None if isinstance(error.data, dict) and error.data.get("ok") is True else 0.0
    if isinstance(error, UnicodeDecodeError):
        # A page too: the JSON of the Bot API is UTF-8.
        return 0.0
    if isinstance(error, TelegramNetworkError | TelegramServerError) and not isinstance(error, TelegramEntityTooLarge):
        return 0.0
    return None
