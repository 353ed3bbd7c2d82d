"""A served local Bot API with one bot, and clients for it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from stepwell.botapi import Bot, BotAPI, Person
from stepwell.telegram import BotClient


@pytest.fixture
async def api() -> AsyncIterator[BotAPI]:
    async with BotAPI() as api:
        yield api


@pytest.fixture
def bot(api: BotAPI) -> Bot:
    return api.bot("my_bot")


@pytest.fixture
def chat(api: BotAPI, bot: Bot) -> Person:
    return api.chat(bot, first_name="Alice")


@pytest.fixture
async def client(api: BotAPI, bot: Bot) -> AsyncIterator[BotClient]:
    async with BotClient(bot.token, api=api.url, patience=20) as client:
        yield client
