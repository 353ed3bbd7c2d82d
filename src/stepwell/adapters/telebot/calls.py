"""Calls of the Bot API that are given as a dict, made by telebot."""

from __future__ import annotations

import json
from typing import Any

from telebot import apihelper, asyncio_helper

__all__ = ["async_call_bot", "call_bot"]

# Not typed in telebot.
_request: Any = apihelper._make_request
_async_request: Any = asyncio_helper._process_request


def call_bot(token: str, call: dict[str, Any]) -> Any:
    """Make a call with the session of ``TeleBot``."""
    return _request(token, call["method"], params=_params(call), method="post")


async def async_call_bot(token: str, call: dict[str, Any]) -> Any:
    """Make a call with the session of ``AsyncTeleBot``."""
    return await _async_request(token, call["method"], params=_params(call), method="post")


def _params(call: dict[str, Any]) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in call.items()
        if name != "method" and value is not None
    }
