"""The examples for python-telegram-bot with the local Bot API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from telegram.ext import ApplicationBuilder

from examples import ptb_registration, ptb_wizard
from stepwell.botapi import BotAPI, Person
from tests.adapters.scenarios import check_registration, check_wizard


@asynccontextmanager
async def polling(example: Any, storage: str, api: BotAPI, chat: Person) -> AsyncIterator[None]:
    builder = ApplicationBuilder().token(chat.bot.token).base_url(f"{api.url}/bot")
    async with example.make_application(storage, builder) as application:
        await application.start()
        await application.updater.start_polling(timeout=2)
        try:
            yield
        finally:
            await application.updater.stop()
            await application.stop()


async def test_the_registration_bot(api: BotAPI, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    storage, chat = f"sqlite:///{tmp_path}/bot.db", api.chat(api.bot("my_bot"))
    await check_registration(chat, lambda: polling(ptb_registration, storage, api, chat))
    assert "Error" not in caplog.text
    assert chat.bot.token not in caplog.text


async def test_the_wizard(api: BotAPI, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    storage, chat = f"sqlite:///{tmp_path}/bot.db", api.chat(api.bot("my_bot"))
    await check_wizard(chat, lambda: polling(ptb_wizard, storage, api, chat))
    assert "Error" not in caplog.text
