"""Calls of the Bot API that are given as a dict, made by aiogram."""

from __future__ import annotations

from functools import partial
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
from aiogram.types import TelegramObject

from stepwell.adapters.aiogram.objects import as_json
from stepwell.adapters.framework.client import FrameworkClient
from stepwell.engine import quoted
from stepwell.errors import UsageError

__all__ = ["call_bot", "client_of", "pause_of"]


def client_of(bot: Bot) -> FrameworkClient:
    """Return the client that makes its calls with a bot."""

    async def fetch(call: dict[str, Any]) -> tuple[bytes, str]:
        path = (await bot.get_file(call["file_id"])).file_path or ""
        content = await bot.download_file(path)
        assert content is not None
        return content.read(), path

    return FrameworkClient(bot, partial(call_bot, bot), pause_of, fetch)


async def call_bot(bot: Bot, call: dict[str, Any]) -> Any:
    """Make a call, and return its result as JSON."""
    params = dict(call)
    name: str = params.pop("method")
    method = getattr(api, name[:1].upper() + name[1:], None)
    if method is None:
        raise UsageError(
            f"this release of aiogram has no method {quoted(name)}; upgrade aiogram, or use another method"
        )
    return _result(await bot(method(**params)))


def _result(result: Any) -> Any:
    if isinstance(result, list):
        return [_result(each) for each in result]
    return as_json(result) if isinstance(result, TelegramObject) else result


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
