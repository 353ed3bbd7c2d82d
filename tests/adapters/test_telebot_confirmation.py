"""Polling with ``threaded=False`` or ``confirm_handled``: Telegram keeps an update until it is handled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from telebot import TeleBot, apihelper, asyncio_helper
from telebot.async_telebot import AsyncTeleBot

from stepwell.adapters.telebot import confirm_handled, fsm_of, setup
from stepwell.botapi import BotAPI, Person
from stepwell.errors import InvalidOption, StorageUnavailable
from stepwell.fsm import FSM, Flow, state
from stepwell.fsm.conversation.conversation import Conversation
from tests.adapters.test_telebot_setup import polling, update

# Older releases of telebot with a newer aiohttp.
pytestmark = pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning")


class Count(Flow, name="count"):
    counting = state()
    default_state = counting


@pytest.fixture
async def chat(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Person]:
    async with BotAPI() as api:
        for helper in (apihelper, asyncio_helper):
            monkeypatch.setattr(helper, "API_URL", f"{api.url}/bot{{0}}/{{1}}")
        yield api.chat(api.bot("my_bot"))


def make_bot(chat: Person, folder: Path, begun: threading.Event, go: threading.Event, *, awaits: bool) -> Any:
    """Return a bot that counts messages, as soon as it may go on."""

    def count(message: Any) -> None:
        ctx = fsm_of(message)
        if ctx.flow is None:
            ctx.start_flow(Count)
        ctx.update_data(n=ctx.data.get("n", 0) + 1)
        ctx.answer(str(ctx.data["n"]))

    def wait_and_count(message: Any) -> None:
        begun.set()
        assert go.wait(60)
        count(message)

    async def wait_and_count_async(message: Any) -> None:
        begun.set()
        await asyncio.to_thread(go.wait, 60)
        count(message)

    fsm = FSM("my_bot", storage=f"sqlite:///{folder}/bot.db", flows=[Count])
    if awaits:
        async_bot = AsyncTeleBot(chat.bot.token)
        setup(async_bot, fsm)
        confirm_handled(async_bot)
        async_bot.register_message_handler(wait_and_count_async)
        return async_bot
    bot = TeleBot(chat.bot.token, threaded=False)
    setup(bot, fsm)
    bot.register_message_handler(wait_and_count)
    return bot


@pytest.mark.parametrize("awaits", [False, True], ids=["sync", "async"])
async def test_an_update_is_confirmed_when_it_is_handled(chat: Person, tmp_path: Path, awaits: bool) -> None:
    begun, go = threading.Event(), threading.Event()
    async with polling(make_bot(chat, tmp_path, begun, go, awaits=awaits)):
        await chat.send("one")
        assert await asyncio.to_thread(begun.wait, 60)
        await asyncio.sleep(0.1)
        assert chat.bot.updates.pending
        go.set()
        assert await chat.answer() == "1"
        assert await chat.ask("two") == "2"


@pytest.fixture
def failing_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first update fail to be written."""
    leave, failures = Conversation.__aexit__, iter(range(1))

    async def failing(self: Conversation, *error: Any) -> Any:
        if next(failures, None) is not None:
            lost = StorageUnavailable("away")
            await leave(self, type(lost), lost, None)
            raise lost
        return await leave(self, *error)

    monkeypatch.setattr(Conversation, "__aexit__", failing)


@pytest.mark.usefixtures("failing_once")
async def test_an_update_that_could_not_be_written_is_delivered_again(chat: Person, tmp_path: Path) -> None:
    begun, go = threading.Event(), threading.Event()
    go.set()
    async with polling(make_bot(chat, tmp_path, begun, go, awaits=True)):
        assert await chat.ask("one") == "1"
        assert await chat.ask("two") == "2"


@pytest.mark.usefixtures("failing_once")
def test_a_sync_bot_gets_an_update_that_could_not_be_written_again() -> None:
    bot = TeleBot("7:token", threaded=False)
    setup(bot, FSM("my_bot", storage="memory://", flows=[Count]))
    bot.register_message_handler(lambda message: fsm_of(message).start_flow(Count))
    updates = [update("one", update_id=11), update("two", update_id=12)]
    with pytest.raises(StorageUnavailable):
        bot.process_new_updates(updates)
    # Polling asks for the updates after this one.
    assert bot.last_update_id < 11
    bot.process_new_updates(updates)
    assert bot.last_update_id == 12
    bot.stop_bot()


def test_a_bot_of_another_class_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"TeleBot\(token, threaded=False\) handles an update before it"):
        confirm_handled(TeleBot("7:token"))  # type: ignore[arg-type]
