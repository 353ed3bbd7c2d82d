"""Calls of the Bot API that are given as a dict, made by telebot."""

from __future__ import annotations

import json
import re
from typing import Any

from telebot import apihelper, asyncio_helper

from stepwell.errors import UsageError

__all__ = ["async_call_bot", "call_bot", "pause_of"]

_TOO_MANY, _SERVER_ERROR = 429, 500
#: The errors of requests are OSErrors.
_NO_ANSWER = (
    OSError,
    TimeoutError,
    asyncio_helper.RequestTimeout,
    apihelper.ApiHTTPException,
    apihelper.ApiInvalidJSONException,
    asyncio_helper.ApiHTTPException,
    asyncio_helper.ApiInvalidJSONException,
)

# Not typed in telebot.
_request: Any = apihelper._make_request
_async_request: Any = asyncio_helper._process_request


def call_bot(token: str, call: dict[str, Any]) -> Any:
    """Make a call with the session of ``TeleBot``."""
    return _request(token, call["method"], params=_params(call), method="post")


async def async_call_bot(token: str, call: dict[str, Any]) -> Any:
    """Make a call with the session of ``AsyncTeleBot``."""
    return await _async_request(token, call["method"], params=_params(call), method="post")


def pause_of(error: Exception) -> float | None:
    """Return the seconds after which a call with this error may be made again; ``None`` if it would fail again."""
    if isinstance(error, apihelper.ApiTelegramException | asyncio_helper.ApiTelegramException):
        if error.error_code == _TOO_MANY:
            asked: Any = error.result_json.get("parameters", {}).get("retry_after", 0)
            return float(asked)
        return 0.0 if error.error_code >= _SERVER_ERROR else None
    # All others are failures of the network, or the page of a proxy instead of an answer.
    return 0.0 if isinstance(error, _NO_ANSWER) else None


def _params(call: dict[str, Any]) -> dict[str, str]:
    params: dict[str, str] = {}
    for name, value in call.items():
        if name == "method" or value is None:
            continue
        try:
            params[name] = value if isinstance(value, str) else json.dumps(value)
        except TypeError:
            method = call["method"]
            own = re.sub("([A-Z])", r"_\1", method).lower()
            raise UsageError(
                f"{method}({name}=...) got {type(value).__name__}, which cannot be stored and sent later; "
                f"send it with bot.{own}"
            ) from None
    return params
