"""Calls of the Bot API that are given as a dict, made by python-telegram-bot."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from json import JSONDecodeError
from typing import Any

from telegram import Bot
from telegram.error import BadRequest, NetworkError, RetryAfter, TelegramError

from stepwell.adapters.framework.client import FrameworkClient

__all__ = ["call_bot", "client_of", "pause_of"]


def client_of(bot: Bot) -> FrameworkClient:
    """Return the client that makes its calls with a bot."""

    async def fetch(call: dict[str, Any]) -> tuple[bytes, str]:
        file = await bot.get_file(call["file_id"])
        return bytes(await file.download_as_bytearray()), file.file_path or ""

    return FrameworkClient(bot, partial(call_bot, bot), pause_of, fetch)


async def call_bot(bot: Bot, call: dict[str, Any]) -> Any:
    """Make a call."""
    params = dict(call)
    # Unlike bot.do_api_request, this does not warn that the bot has a method of that name.
    return await bot._post(params.pop("method"), params)


def pause_of(error: Exception) -> float | None:
    """Return the seconds after which a call with this error may be made again; ``None`` if it would fail again."""
    if isinstance(error, RetryAfter):
        # From release 22.2 on, the public attribute warns that its type will change.
        asked: Any = getattr(error, "_retry_after", None) or error.retry_after
        return asked.total_seconds() if isinstance(asked, timedelta) else float(asked)
    if _is_page(error) or (isinstance(error, TelegramError) and _is_page(error.__cause__)):
        return 0.0
    return 0.0 if isinstance(error, NetworkError) and not isinstance(error, BadRequest) else None


def _is_page(error: BaseException | None) -> bool:
    """Return whether an answer was no JSON. An error for its status, such as Forbidden, has this one as its cause."""
    return isinstance(error, TelegramError) and isinstance(error.__cause__, JSONDecodeError)
