"""confirm_handled: Telegram keeps an update until it is handled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from telegram.ext import Application, ApplicationBuilder, MessageHandler, filters

from stepwell.adapters.ptb import StepwellPersistence, confirm_handled
from stepwell.adapters.ptb.claims import UpdateClaim
from stepwell.botapi import BotAPI, Person
from stepwell.errors import InvalidOption, StorageUnavailable
from tests.adapters.ptb_bots import builder, make_app, message
from tests.servers.process import free_port
from tests.until import until


@asynccontextmanager
async def running(tmp_path: Path, transport: str, handler: Any) -> AsyncIterator[tuple[Application, Person]]:
    async with BotAPI(webhook_pause=0.02) as api:
        chat = api.chat(api.bot("my_bot"))
        made = ApplicationBuilder().token(chat.bot.token).base_url(f"{api.url}/bot")
        application = made.persistence(StepwellPersistence(f"sqlite:///{tmp_path}/bot.db")).build()
        application.add_handler(MessageHandler(filters.TEXT, handler))
        confirm_handled(application)
        async with application:
            assert application.updater is not None
            await application.start()
            if transport == "poll":
                await application.updater.start_polling()
            else:
                port = free_port()
                await application.updater.start_webhook(
                    "127.0.0.1", port, "hook", webhook_url=f"http://127.0.0.1:{port}/hook"
                )
            yield application, chat
            await application.updater.stop()
            await application.stop()


async def until_confirmed(chat: Person) -> None:
    await until(lambda: not chat.bot.updates.pending)


@pytest.mark.parametrize("transport", ["poll", "hook"])
async def test_an_update_is_confirmed_when_it_is_handled(tmp_path: Path, transport: str) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(update: Any, context: Any) -> None:
        begun.set()
        await go.wait()
        context.user_data["n"] = context.user_data.get("n", 0) + 1

    async with running(tmp_path, transport, slow) as (application, chat):
        await chat.send("one")
        async with asyncio.timeout(60):
            await begun.wait()
        await asyncio.sleep(0.1)
        assert chat.bot.updates.pending
        go.set()
        await until_confirmed(chat)
        await chat.send("two")
        await until_confirmed(chat)
        assert application.user_data[chat.id] == {"n": 2}


@pytest.fixture
def failing_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first update fail to be written."""
    finish, failures = UpdateClaim.finish, iter(range(1))

    async def failing(self: UpdateClaim) -> None:
        if next(failures, None) is not None:
            raise StorageUnavailable("away")
        await finish(self)

    monkeypatch.setattr(UpdateClaim, "finish", failing)


async def count(update: Any, context: Any) -> None:
    context.user_data["n"] = context.user_data.get("n", 0) + 1


@pytest.mark.usefixtures("failing_once")
@pytest.mark.parametrize("transport", ["poll", "hook"])
async def test_an_update_that_could_not_be_written_is_delivered_again(tmp_path: Path, transport: str) -> None:
    async with running(tmp_path, transport, count) as (application, chat):
        await chat.send("one")
        await chat.send("two")
        await until_confirmed(chat)
        assert application.user_data[chat.id] == {"n": 2}


@pytest.mark.usefixtures("failing_once")
@pytest.mark.parametrize("concurrent", [True, False])
async def test_the_queue_goes_on_after_an_update_that_could_not_be_written(concurrent: bool) -> None:
    errors: list[Exception] = []

    async def on_error(update: Any, context: Any) -> None:
        errors.append(context.error)

    application = builder(StepwellPersistence("memory://")).concurrent_updates(concurrent).build()
    application.add_handler(MessageHandler(filters.TEXT, count))
    application.add_error_handler(on_error)
    async with application:
        await application.start()
        for text in ("one", "two"):
            await application.update_queue.put(message(application, text))
            await application.update_queue.join()
        await application.stop()
        assert application.user_data[42] == {"n": 1}
    assert [type(error) for error in errors] == [StorageUnavailable]


@pytest.mark.usefixtures("failing_once")
async def test_a_webhook_of_your_own_gets_the_error() -> None:
    application = make_app(StepwellPersistence("memory://"))
    application.add_handler(MessageHandler(filters.TEXT, count))
    async with application:
        update = message(application, "one")
        with pytest.raises(StorageUnavailable):
            await application.process_update(update)
        await application.process_update(update)
        assert application.user_data[42] == {"n": 1}


async def test_an_application_without_an_updater_is_refused() -> None:
    application = ApplicationBuilder().token("7:x").updater(None).build()
    with pytest.raises(InvalidOption, match=r"answer the webhook after 'await application\.process_update\(update\)'"):
        confirm_handled(application)
