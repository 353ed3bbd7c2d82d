"""The aiogram examples with the local Bot API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiogram
import pytest
from aiogram import Dispatcher
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer

from examples import aiogram_registration, aiogram_states, aiogram_wizard, support_forum
from stepwell.botapi import BotAPI, Person
from tests.adapters.scenarios import check_registration, check_wizard, until_confirmed
from tests.until import until


@asynccontextmanager
async def polling(dispatcher: Dispatcher, api: BotAPI, chat: Person) -> AsyncIterator[None]:
    bot = aiogram.Bot(chat.bot.token, session=AiohttpSession(api=TelegramAPIServer.from_base(api.url)))
    running = asyncio.create_task(
        dispatcher.start_polling(bot, handle_signals=False, handle_as_tasks=False, polling_timeout=2)
    )
    try:
        yield
        await until_confirmed(chat.bot)
    finally:
        await dispatcher.stop_polling()
        await running


@pytest.mark.parametrize("example", [aiogram_registration, aiogram_states], ids=["ctx", "states"])
async def test_the_registration_bot_in_both_styles(
    api: BotAPI, tmp_path: Path, example: object, caplog: pytest.LogCaptureFixture
) -> None:
    storage = f"sqlite:///{tmp_path}/bot.db"
    chat = api.chat(api.bot("my_bot"))
    make: Callable[[str], Dispatcher] = example.make_dispatcher  # type: ignore[attr-defined]
    await check_registration(chat, lambda: polling(make(storage), api, chat))
    assert "Error" not in caplog.text
    assert chat.bot.token not in caplog.text


async def test_the_wizard(api: BotAPI, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    storage, chat = f"sqlite:///{tmp_path}/bot.db", api.chat(api.bot("my_bot"))
    await check_wizard(chat, lambda: polling(aiogram_wizard.make_dispatcher(storage), api, chat))
    assert "Error" not in caplog.text
    assert chat.bot.token not in caplog.text


async def test_the_support_bot_in_forum_topics(api: BotAPI, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    storage, forum_id = f"sqlite:///{tmp_path}/bot.db", -(10**12) - 5
    alice = api.chat(api.bot("support_bot"), first_name="Alice")
    team = alice.user(99, first_name="Agent").group(forum_id, is_forum=True)
    bob = alice.user(7, first_name="Bob")

    async with polling(support_forum.make_dispatcher(storage, forum_id), api, alice):
        assert (await alice.ask("/start")).startswith("Write your question")
        assert (await alice.ask("It is broken")).startswith("Thank you")
        assert (await bob.ask("Mine too")).startswith("Thank you")
        desk, other = team.topic("Alice"), team.topic("Bob")
        assert (desk.last, other.last) == ("It is broken", "Mine too")
        await desk.send("Have you tried turning it off?")
        assert await alice.answer() == "Have you tried turning it off?"
    async with polling(support_forum.make_dispatcher(storage, forum_id), api, alice):
        await alice.send("That helped")
        await until(lambda: desk.last == "That helped")
        await desk.send("/solved")
        assert (await alice.answer()).startswith("The team says")
        await until(lambda: desk.room.topics[desk.thread or 0].closed)
        await alice.send("It is back")
        await until(lambda: desk.last == "It is back")
        assert not desk.room.topics[desk.thread or 0].closed
        await other.send("Yours is solved as well")
        assert await bob.answer() == "Yours is solved as well"
    assert len(desk.room.topics) == 2
    assert "Error" not in caplog.text
