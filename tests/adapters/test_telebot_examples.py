"""The examples for telebot with the local Bot API."""

from __future__ import annotations

from pathlib import Path

import pytest
from telebot import apihelper, asyncio_helper

from examples import telebot_registration, telebot_wizard
from stepwell.botapi import BotAPI
from tests.adapters.scenarios import check_registration, check_wizard
from tests.adapters.test_telebot_setup import polling

# Older releases of telebot with a newer aiohttp.
pytestmark = pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning")


@pytest.fixture(autouse=True)
def local(api: BotAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    for helper in (apihelper, asyncio_helper):
        monkeypatch.setattr(helper, "API_URL", f"{api.url}/bot{{0}}/{{1}}")


async def test_the_registration_bot(api: BotAPI, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    storage, chat = f"sqlite:///{tmp_path}/bot.db", api.chat(api.bot("my_bot"))
    await check_registration(chat, lambda: polling(telebot_registration.make_bot(chat.bot.token, storage)))
    assert "Error" not in caplog.text
    assert chat.bot.token not in caplog.text


async def test_the_wizard(api: BotAPI, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    storage, chat = f"sqlite:///{tmp_path}/bot.db", api.chat(api.bot("my_bot"))
    await check_wizard(chat, lambda: polling(telebot_wizard.make_bot(chat.bot.token, storage)))
    assert "Error" not in caplog.text
    assert chat.bot.token not in caplog.text
