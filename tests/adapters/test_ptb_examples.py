"""The examples for python-telegram-bot with the local Bot API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from telegram.ext import ApplicationBuilder

from examples import ptb_registration, ptb_wizard
from stepwell.playground.botapi import BotAPI, Person


@pytest.fixture
async def api() -> AsyncIterator[BotAPI]:
    async with BotAPI() as api:
        yield api


@asynccontextmanager
async def polling(example: Any, storage: str, api: BotAPI, chat: Person) -> AsyncIterator[None]:
    builder = ApplicationBuilder().token(chat.bot.token).base_url(f"{api.url}/bot")
    async with example.make_application(storage, builder) as application:
        await application.start()
        await application.updater.start_polling(timeout=2)
        try:
            yield
            # A handled update is confirmed; another one would be delivered again after a restart.
            async with asyncio.timeout(60):
                while chat.bot.updates.pending:
                    await asyncio.sleep(0.01)
        finally:
            await application.updater.stop()
            await application.stop()


async def test_the_registration_bot(api: BotAPI, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    storage, chat = f"sqlite:///{tmp_path}/bot.db", api.chat(api.bot("my_bot"))
    bob = chat.user(7)
    async with polling(ptb_registration, storage, api, chat):
        assert await chat.ask("/register") == "What's your name?"
        assert await bob.ask("/register") == "What's your name?"
        assert await chat.ask("Alice") == "Got it, Alice! What's your email?"
        assert await bob.ask("/cancel") == "Cancelled."
    # After a restart.
    async with polling(ptb_registration, storage, api, chat):
        assert await chat.ask("alice@example.com") == "Please confirm."
        assert await chat.ask("yes") == "Registered! Welcome, Alice!"
    assert "Error" not in caplog.text
    assert chat.bot.token not in caplog.text


async def test_the_wizard(api: BotAPI, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    storage, chat = f"sqlite:///{tmp_path}/bot.db", api.chat(api.bot("my_bot"))
    async with polling(ptb_wizard, storage, api, chat):
        assert await chat.ask("/register") == "What's your name?"
        assert await chat.ask("Alic") == "What's your email?"
        assert await chat.ask("/back") == "What's your name?"
        assert await chat.ask("Alice") == "What's your email?"
    async with polling(ptb_wizard, storage, api, chat):
        assert await chat.ask("nowhere") == "Please send an email address, such as alice@example.com."
        assert await chat.ask("alice@example.com") == "Alice, alice@example.com: is that right?"
        await chat.press("Confirm")
        assert await chat.answer() == "Registered! Welcome, Alice!"
        await chat.ask("/register")
        assert await chat.ask("/cancel") == "Cancelled."
    assert "Error" not in caplog.text
