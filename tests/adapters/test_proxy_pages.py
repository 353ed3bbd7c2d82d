"""Pages of a proxy in place of Telegram are no answers: the frameworks' bots make their calls again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import aiogram
import pytest
import telebot.asyncio_helper
import telegram.ext
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer

from stepwell.adapters.aiogram import calls as aiogram_calls
from stepwell.adapters.framework import sending
from stepwell.adapters.framework.sending import sender
from stepwell.adapters.ptb import calls as ptb_calls
from stepwell.adapters.telebot import calls as telebot_calls
from tests.constants import Constants
from tests.reliability.dose import dose
from tests.reliability.raw_telegram import PAGES, RawTelegram

TOKEN = "7:secret"


@asynccontextmanager
async def by_aiogram(url: str) -> AsyncIterator[sending.MakeCall]:
    session = AiohttpSession(api=TelegramAPIServer.from_base(url))
    async with aiogram.Bot(TOKEN, session=session) as bot:
        yield sender(partial(aiogram_calls.call_bot, bot), aiogram_calls.pause_of)


@asynccontextmanager
async def by_ptb(url: str) -> AsyncIterator[sending.MakeCall]:
    async with telegram.ext.ExtBot(TOKEN, base_url=f"{url}/bot") as bot:
        yield sender(partial(ptb_calls.call_bot, bot), ptb_calls.pause_of)


@asynccontextmanager
async def by_telebot(url: str) -> AsyncIterator[sending.MakeCall]:
    api = telebot.asyncio_helper.API_URL
    telebot.asyncio_helper.API_URL = f"{url}/bot{{0}}/{{1}}"
    try:
        yield sender(partial(telebot_calls.async_call_bot, TOKEN), telebot_calls.pause_of)
    finally:
        telebot.asyncio_helper.API_URL = api
        await telebot.asyncio_helper.session_manager.session.close()


Framework = Callable[[str], AbstractAsyncContextManager[sending.MakeCall]]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("framework", [by_aiogram, by_ptb, by_telebot])
async def test_calls_that_a_proxy_answers_are_made_again(framework: Framework, page: str, constants: Constants) -> None:
    constants(sending_pauses=(0.001, 0.002))
    messages = dose("PROXY_CALLS", 3, 500)
    async with RawTelegram() as telegram, framework(telegram.url) as send:
        for number in range(messages):
            telegram.block(PAGES[page], 2, "sendMessage")
            call: dict[str, Any] = {"method": "sendMessage", "chat_id": 1, "text": f"text {number}"}
            await send(call)
        assert telegram.sent == {1: [f"text {number}" for number in range(messages)]}
        assert telegram.given == 2 * messages
    print(f"{telegram.given} pages, {messages} messages")
