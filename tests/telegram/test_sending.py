"""Sending the calls of handlers."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from stepwell.botapi import Bot, BotAPI, Person
from stepwell.errors import BotBlocked, BotUnavailable, InvalidOption
from stepwell.fsm import FSM, Router
from stepwell.telegram import BotClient, InputFile, Sender


async def test_the_answers_of_a_router_are_sent_in_order(client: BotClient, bot: Bot, chat: Person) -> None:
    router = Router(FSM("bot", storage="memory://", flows=[]), send=Sender(client).send)

    @router.on()
    async def answer(ctx: Any) -> None:
        for number in range(3):
            ctx.answer(f"{ctx.update.text} {number}")

    await router.handle(bot_update(await chat.send("hello")))
    assert [message["text"] for message in chat.messages] == ["hello", "hello 0", "hello 1", "hello 2"]


def bot_update(message: dict[str, Any]) -> dict[str, Any]:
    return {"update_id": 1, "message": message}


async def test_a_refused_call_is_logged_once_and_the_rest_is_sent(
    client: BotClient, chat: Person, caplog: pytest.LogCaptureFixture
) -> None:
    reported: list[tuple[dict[str, Any], Exception]] = []
    sender = Sender(client, on_send_error=lambda call, error: reported.append((call, error)))
    empty = {"method": "sendMessage", "chat_id": 42, "text": ""}
    with caplog.at_level(logging.WARNING):
        await sender.send_all([empty, {"method": "sendMessage", "chat_id": 42, "text": "next"}])
    assert chat.last == "next"
    ((call, error),) = reported
    assert call == empty
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == "a call was not sent: sendMessage was refused: 400 Bad Request: message text is empty (chat 42)"
    assert str(error) in line


async def test_on_send_error_gets_bot_blocked(client: BotClient, chat: Person) -> None:
    blocked: list[Any] = []

    async def on_send_error(call: dict[str, Any], error: Exception) -> None:
        if isinstance(error, BotBlocked):
            blocked.append(call["chat_id"])

    await chat.block()
    await Sender(client, on_send_error=on_send_error).send({"method": "sendMessage", "chat_id": 42, "text": "hello"})
    assert blocked == [42]


@pytest.mark.parametrize(
    "call",
    [
        {"method": "sendDocument", "chat_id": 42, "document": InputFile("missing.pdf")},
        {"method": "sendMessage", "chat_id": 42, "text": object()},
        {"method": "send message", "chat_id": 42},
        {"chat_id": 42},
    ],
)
async def test_a_call_that_cannot_be_sent_is_final_too(client: BotClient, chat: Person, call: dict[str, Any]) -> None:
    reported: list[Exception] = []
    await Sender(client, on_send_error=lambda call, error: reported.append(error)).send(call)
    assert [type(error) for error in reported] == [InvalidOption]


async def test_an_unexpected_error_is_logged_and_final(
    client: BotClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def failing(method: str, /, **params: Any) -> Any:
        raise RuntimeError("a fault of the client")

    monkeypatch.setattr(client, "call", failing)
    await Sender(client).send({"method": "sendDocument", "chat_id": 42, "document": InputFile(content=b"x")})
    assert "sendDocument could not be sent" in caplog.text


async def test_an_error_in_on_send_error_is_logged(
    client: BotClient, chat: Person, caplog: pytest.LogCaptureFixture
) -> None:
    def on_send_error(call: dict[str, Any], error: Exception) -> None:
        raise ValueError("broken")

    await Sender(client, on_send_error=on_send_error).send({"method": "sendMessage", "chat_id": 42, "text": ""})
    assert "on_send_error raised for a refused sendMessage" in caplog.text


async def test_an_unavailable_server_is_raised_and_stops_the_rest(api: BotAPI, bot: Bot, chat: Person) -> None:
    async with BotClient(bot.token, api=api.url, patience=0.2) as client:
        bot.refuse(503, "Service Unavailable", times=1000)
        reported: list[Exception] = []
        sender = Sender(client, on_send_error=lambda call, error: reported.append(error))
        with pytest.raises(BotUnavailable):
            await sender.send_all([{"method": "sendMessage", "chat_id": 42, "text": text} for text in "ab"])
    assert not reported
    assert {call["text"] for call in bot.calls} == {"a"}


def test_on_send_error_must_be_a_function() -> None:
    with pytest.raises(InvalidOption):
        Sender(BotClient("1:x"), on_send_error="log")  # type: ignore[arg-type]
