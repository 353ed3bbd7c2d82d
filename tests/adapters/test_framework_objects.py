"""Keyboards and other objects of the frameworks in ``ctx.answer``: they are sent, and remembered for a redelivery."""

from __future__ import annotations

import io
import json
from typing import Any

import aiogram.types
import pytest
import telebot.types
import telegram
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer
from aiogram.enums import ParseMode
from aiogram.utils.formatting import Bold, Text
from telebot import apihelper, asyncio_helper

from stepwell.adapters.aiogram import calls as aiogram_calls
from stepwell.adapters.ptb import calls as ptb_calls
from stepwell.adapters.telebot import calls as telebot_calls
from stepwell.botapi import BotAPI
from stepwell.errors import UsageError
from stepwell.fsm import FSM, Context, Router
from stepwell.fsm.conversation.framework_objects import as_plain
from stepwell.storage import Storage
from stepwell.testing import Chat

INLINE = {"inline_keyboard": [[{"text": "Yes", "callback_data": "y"}]]}
REPLY = {"keyboard": [[{"text": "Yes"}]]}


def aiogram_inline() -> Any:
    return aiogram.types.InlineKeyboardMarkup(
        inline_keyboard=[[aiogram.types.InlineKeyboardButton(text="Yes", callback_data="y")]]
    )


def ptb_inline() -> Any:
    return telegram.InlineKeyboardMarkup([[telegram.InlineKeyboardButton("Yes", callback_data="y")]])


def telebot_inline() -> Any:
    return telebot.types.InlineKeyboardMarkup([[telebot.types.InlineKeyboardButton("Yes", callback_data="y")]])


def telebot_reply() -> Any:
    markup = telebot.types.ReplyKeyboardMarkup()
    markup.add("Yes")
    return markup


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (aiogram_inline(), INLINE),
        (aiogram.types.ReplyKeyboardMarkup(keyboard=[[aiogram.types.KeyboardButton(text="Yes")]]), REPLY),
        (aiogram.types.ReplyKeyboardRemove(), {"remove_keyboard": True}),
        # Fields that are not set have a placeholder, for which aiogram takes the default of the bot.
        (aiogram.types.LinkPreviewOptions(url="a.example"), {"url": "a.example"}),
        (aiogram.types.ReplyParameters(message_id=7), {"message_id": 7}),
        (Text("A ", Bold("b")).as_kwargs()["entities"], [{"type": "bold", "offset": 2, "length": 1}]),
        (ParseMode.HTML, "HTML"),
        (ptb_inline(), INLINE),
        (telegram.ReplyKeyboardMarkup([["Yes"]]), REPLY),
        (telegram.ForceReply(), {"force_reply": True}),
        ((telegram.MessageEntity("bold", 0, 1),), [{"type": "bold", "offset": 0, "length": 1}]),
        (telegram.constants.ParseMode.HTML, "HTML"),
        (telebot_inline(), INLINE),
        (telebot_reply(), REPLY),
        (telebot.types.ReplyKeyboardRemove(), {"remove_keyboard": True}),
        (telebot.types.ReplyParameters(7), {"message_id": 7}),
        ({"inline_keyboard": [[aiogram.types.InlineKeyboardButton(text="Yes", callback_data="y")]]}, INLINE),
        ([{"inline_keyboard": [[telegram.InlineKeyboardButton("Yes", callback_data="y")]]}], [INLINE]),
    ],
)
def test_objects_of_frameworks_as_plain_values(given: Any, plain: Any) -> None:
    found = as_plain(given)
    assert found == plain
    assert type(found) is type(plain)
    json.dumps(found)


@pytest.mark.parametrize(
    "given",
    [
        b"bytes",
        [aiogram.types.InputMediaPhoto(media=aiogram.types.BufferedInputFile(b"1", "a.jpg"))],
        telegram.InputMediaPhoto(b"1"),
        {"media": telegram.InputFile(b"1")},
        [telebot.types.InputMediaPhoto(io.BytesIO(b"1"))],
        telebot.types.InputSticker(io.BytesIO(b"1"), ["x"], "static"),
    ],
)
def test_a_value_that_json_cannot_represent_is_not_changed(given: Any) -> None:
    assert as_plain(given) is given


@pytest.mark.parametrize("make", [aiogram_inline, ptb_inline, telebot_inline])
async def test_an_answer_with_a_keyboard_of_a_framework_is_repeated(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def router(storage: Storage) -> Router:
        made = Router(FSM("my_bot", storage=storage, flows=[]))

        @made.on()
        async def ask(ctx: Context) -> None:
            ctx.answer("Sure?", reply_markup=make(), parse_mode=ParseMode.HTML)

        return made

    async with Chat(router) as chat:
        assert await chat.send("hi") == ["Sure?"]
        await chat.restart()
        assert await chat.redeliver() == ["Sure?"]
        assert [call["reply_markup"] for call in chat.calls] == [INLINE, INLINE]
        assert chat.calls[0] == chat.calls[1]
    assert not caplog.records


async def test_each_framework_sends_plain_keyboards(monkeypatch: pytest.MonkeyPatch) -> None:
    async with BotAPI() as api:
        registered = api.bot("my_bot")
        person = api.chat(registered)
        await person.send("/start")
        for helper in (apihelper, asyncio_helper):
            monkeypatch.setattr(helper, "API_URL", f"{api.url}/bot{{0}}/{{1}}")

        def call(text: str, markup: Any) -> dict[str, Any]:
            return {"method": "sendMessage", "chat_id": 42, "text": text, "reply_markup": as_plain(markup)}

        async with aiogram.Bot(
            registered.token, session=AiohttpSession(api=TelegramAPIServer.from_base(api.url))
        ) as bot:
            await aiogram_calls.call_bot(bot, call("aiogram", aiogram_inline()))
        async with telegram.Bot(registered.token, base_url=f"{api.url}/bot") as ptb_bot:
            await ptb_calls.call_bot(ptb_bot, call("ptb", ptb_inline()))
        await telebot_calls.async_call_bot(registered.token, call("telebot", telebot_inline()))
        await asyncio_helper.session_manager.session.close()
        for name in ("aiogram", "ptb", "telebot"):
            message = next(each for each in person.messages if each.get("text") == name)
            assert message["reply_markup"] == INLINE, name


def test_telebot_explains_which_value_it_cannot_send() -> None:
    with pytest.raises(UsageError, match=r"sendPhoto\(photo=...\) got bytes, .*; send it with bot.send_photo"):
        telebot_calls.call_bot("1:a", {"method": "sendPhoto", "chat_id": 42, "photo": b"1"})
