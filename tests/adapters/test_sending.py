"""Calls that a framework makes are retried while Telegram is unavailable, and timers get our errors."""

from __future__ import annotations

import json
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import aiogram.exceptions
import pytest
import requests
import telebot.apihelper
import telebot.asyncio_helper
import telegram.error

from stepwell.adapters.aiogram import calls as aiogram_calls
from stepwell.adapters.framework import sending
from stepwell.adapters.framework.sending import PauseOf, make_call, sender
from stepwell.adapters.ptb import calls as ptb_calls
from stepwell.adapters.telebot import calls as telebot_calls
from stepwell.errors import BotApiError, BotUnavailable
from tests.constants import Constants

CALL = {"method": "sendMessage", "chat_id": 1, "text": "hello"}
TOKEN = "7:secret"


class Away(Exception):
    """Telegram is unavailable."""


class Refused(Exception):
    """The call would fail again."""


def pause_of(error: Exception) -> float | None:
    return 0.0 if isinstance(error, Away) else None


class Telegram:
    """Fails with these errors first, and then accepts calls."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.attempts = 0

    async def make(self, call: dict[str, Any]) -> str:
        assert call == CALL
        self.attempts += 1
        if self.errors:
            raise self.errors.pop(0)
        return "sent"


@pytest.fixture
def quick(constants: Constants) -> None:
    constants(sending_pauses=(0.001, 0.002))


async def test_a_call_is_retried_while_telegram_is_unavailable(quick: None, caplog: pytest.LogCaptureFixture) -> None:
    server = Telegram(*[Away(TOKEN) for _ in range(5)])
    assert await make_call(server.make, pause_of, CALL) == "sent"
    assert server.attempts == 6
    assert "retrying sendMessage in 0.001 s (Away)" in caplog.text
    assert TOKEN not in caplog.text


async def test_a_refused_call_is_not_retried(quick: None) -> None:
    server = Telegram(Away(), Refused("no"), Refused("never reached"))
    with pytest.raises(Refused, match="no"):
        await make_call(server.make, pause_of, CALL)
    assert server.attempts == 2


async def test_a_call_is_not_retried_if_its_pause_exceeds_the_patience(quick: None) -> None:
    server = Telegram(Away(), Away())
    with pytest.raises(Away):
        await make_call(server.make, lambda error: sending.CALL_PATIENCE + 1, CALL)
    assert server.attempts == 1


async def test_timers_get_our_errors_without_the_token(quick: None, constants: Constants) -> None:
    constants(sending_patience=0.0)
    server = Telegram(Away(TOKEN), Refused("Bad Request: chat not found"))
    send = sender(server.make, pause_of)
    with pytest.raises(BotUnavailable, match="sendMessage was not accepted: Away; try it again later") as away:
        await send(CALL)
    assert away.value.__cause__ is away.value.__context__ is None
    with pytest.raises(BotApiError, match="sendMessage was refused: Bad Request: chat not found") as refused:
        await send(CALL)
    assert not isinstance(refused.value, BotUnavailable)
    assert await send(CALL) == "sent"


def _telebot_error(helper: Any, code: int, **more: Any) -> Exception:
    error: Exception = helper.ApiTelegramException(
        "sendMessage", None, {"error_code": code, "description": "no", **more}
    )
    return error


def _aiogram_error(name: str, **more: Any) -> Exception:
    error: Exception = getattr(aiogram.exceptions, name)(method=None, message="no", **more)
    return error


_HELPERS = (telebot.apihelper, telebot.asyncio_helper)
_PAGE = SimpleNamespace(status_code=502, status=502, reason="Bad Gateway", text="<html>", request_info="")
_NOT_JSON = json.JSONDecodeError("no", "<html>", 0)


@pytest.mark.parametrize(
    ("found", "error", "pause"),
    [
        (aiogram_calls.pause_of, _aiogram_error("TelegramNetworkError"), 0.0),
        (aiogram_calls.pause_of, _aiogram_error("TelegramServerError"), 0.0),
        (aiogram_calls.pause_of, _aiogram_error("TelegramRetryAfter", retry_after=7), 7.0),
        (aiogram_calls.pause_of, _aiogram_error("TelegramEntityTooLarge"), None),
        (aiogram_calls.pause_of, _aiogram_error("TelegramBadRequest"), None),
        (aiogram_calls.pause_of, _aiogram_error("TelegramForbiddenError"), None),
        (aiogram_calls.pause_of, aiogram.exceptions.ClientDecodeError("no", _NOT_JSON, "<html>"), 0.0),
        (aiogram_calls.pause_of, aiogram.exceptions.ClientDecodeError("no", ValueError(), {"ok": True}), None),
        (aiogram_calls.pause_of, aiogram.exceptions.ClientDecodeError("no", ValueError(), {"error": "no route"}), 0.0),
        (aiogram_calls.pause_of, ValueError(), None),
        (ptb_calls.pause_of, telegram.error.NetworkError("no"), 0.0),
        (ptb_calls.pause_of, telegram.error.TimedOut(), 0.0),
        (ptb_calls.pause_of, telegram.error.BadRequest("no"), None),
        (ptb_calls.pause_of, telegram.error.Forbidden("no"), None),
        (ptb_calls.pause_of, ValueError(), None),
        *[(telebot_calls.pause_of, _telebot_error(helper, 400), None) for helper in _HELPERS],
        *[(telebot_calls.pause_of, _telebot_error(helper, 502), 0.0) for helper in _HELPERS],
        *[(telebot_calls.pause_of, _telebot_error(helper, 429), 0.0) for helper in _HELPERS],
        *[
            (telebot_calls.pause_of, _telebot_error(helper, 429, parameters={"retry_after": 7}), 7.0)
            for helper in _HELPERS
        ],
        *[(telebot_calls.pause_of, helper.ApiHTTPException("sendMessage", _PAGE), 0.0) for helper in _HELPERS],
        (telebot_calls.pause_of, telebot.asyncio_helper.RequestTimeout(), 0.0),
        (telebot_calls.pause_of, requests.ConnectionError(), 0.0),
        (telebot_calls.pause_of, requests.Timeout(), 0.0),
        (telebot_calls.pause_of, TypeError(), None),
    ],
)
def test_errors_of_the_frameworks(found: PauseOf, error: Exception, pause: float | None) -> None:
    assert found(error) == pause


@pytest.mark.filterwarnings("default::telegram.warnings.PTBDeprecationWarning")
@pytest.mark.parametrize("asked", [7, timedelta(seconds=7)])
def test_the_pause_that_telegram_asks_for_in_python_telegram_bot(asked: Any) -> None:
    assert ptb_calls.pause_of(telegram.error.RetryAfter(asked)) == 7.0


async def test_a_text_whose_formatting_is_refused_is_sent_as_it_is() -> None:
    made: list[dict[str, Any]] = []

    async def make(call: dict[str, Any]) -> str:
        made.append(call)
        if "parse_mode" in call:
            raise Refused("Bad Request: can't parse entities: Unclosed start tag")
        return "sent"

    assert await make_call(make, pause_of, {**CALL, "parse_mode": "HTML"}) == "sent"
    assert made == [{**CALL, "parse_mode": "HTML"}, CALL]
    with pytest.raises(Refused):
        await make_call(Telegram(Refused("Bad Request: chat not found")).make, pause_of, CALL)
