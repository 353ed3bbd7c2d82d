"""Turns in the bots of frameworks: their own handlers come first, and stops and presses wait for none of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiogram
import pytest
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer
from aiogram.filters import Command
from telegram.ext import ApplicationBuilder, CommandHandler

from stepwell import MemoryStorage, Storage
from stepwell.adapters.aiogram import StepwellIsolation, StepwellStorage
from stepwell.adapters.ptb import confirm_handled
from stepwell.botapi import BotAPI, Person
from stepwell.errors import InvalidOption, UsageError
from stepwell.turns import Turn, Turns
from tests.adapters.scenarios import until_confirmed
from tests.until import until


@asynccontextmanager
async def polling(application: Any) -> AsyncIterator[None]:
    async with application:
        await application.start()
        await application.updater.start_polling(timeout=2)
        try:
            yield
        finally:
            await application.updater.stop()
            await application.stop()


def texts(person: Person) -> list[str]:
    return [message["text"] for message in person.messages if message["from"]["is_bot"]]


class Working:
    """Turns whose handler works until it is stopped, and a slow handler of the framework."""

    def __init__(self, storage: Storage) -> None:
        self.turns = Turns("agent_bot", storage=storage, collect=0.0)
        self.working, self.slow, self.go = asyncio.Event(), asyncio.Event(), asyncio.Event()

        @self.turns.handler
        async def answer(turn: Turn) -> AsyncIterator[str]:
            yield "Working"
            self.working.set()
            await asyncio.Event().wait()

    async def wait(self, *_: Any) -> None:
        self.slow.set()
        await self.go.wait()

    async def is_stopped(self, ann: Person) -> None:
        """Stop a turn while the slow handler of the same chat runs."""
        await ann.send("hi")
        await asyncio.wait_for(self.working.wait(), 60)
        await ann.send("/slow")
        await asyncio.wait_for(self.slow.wait(), 60)
        await ann.send("/stop")
        await until(lambda: texts(ann) == ["Working [stopped]"])
        self.go.set()


async def test_a_stop_does_not_wait_for_the_events_isolation_of_aiogram(api: BotAPI) -> None:
    ann = api.chat(api.bot("agent_bot"), 42)
    async with MemoryStorage() as storage:
        agent = Working(storage)
        dispatcher = aiogram.Dispatcher(storage=StepwellStorage(storage), events_isolation=StepwellIsolation(storage))

        @dispatcher.message(Command("slow"))
        async def wait(message: Any) -> None:
            await agent.wait()

        agent.turns.attach(dispatcher)
        client = aiogram.Bot(ann.bot.token, session=AiohttpSession(api=TelegramAPIServer.from_base(api.url)))
        running = asyncio.create_task(dispatcher.start_polling(client, handle_signals=False, polling_timeout=2))
        await agent.is_stopped(ann)
        await dispatcher.stop_polling()
        await running


async def test_a_stop_does_not_wait_in_the_queue_of_an_application(api: BotAPI) -> None:
    ann = api.chat(api.bot("agent_bot"), 42)
    async with MemoryStorage() as storage:
        agent = Working(storage)
        application = ApplicationBuilder().token(ann.bot.token).base_url(f"{api.url}/bot").build()
        agent.turns.attach(application)
        # Added later, and still before the turns.
        application.add_handler(CommandHandler("slow", agent.wait))
        async with polling(application):
            await agent.is_stopped(ann)


async def test_a_message_is_confirmed_when_its_turn_is_stored(api: BotAPI) -> None:
    bot = api.bot("agent_bot")
    ann = api.chat(bot, 42)
    async with MemoryStorage() as storage:
        application = ApplicationBuilder().token(bot.token).base_url(f"{api.url}/bot").build()
        confirm_handled(application)
        agent = Working(storage)
        agent.turns.attach(application)
        async with polling(application):
            await ann.send("tell me")
            await until_confirmed(bot)
            assert (await agent.turns.status((42, 0))).state != "idle"


async def test_a_dispatcher_that_starts_again_runs_its_turns_again(api: BotAPI) -> None:
    ann = api.chat(api.bot("agent_bot"), 42)
    async with MemoryStorage() as storage:
        dispatcher, turns = aiogram.Dispatcher(), Turns("agent_bot", storage=storage, collect=0.0)

        @turns.handler
        async def answer(turn: Turn) -> None:
            turn.answer(turn.text.upper())

        turns.attach(dispatcher)
        for said in ("one", "two"):
            client = aiogram.Bot(ann.bot.token, session=AiohttpSession(api=TelegramAPIServer.from_base(api.url)))
            polls = dispatcher.start_polling(client, handle_signals=False, polling_timeout=2)
            running = asyncio.create_task(polls)
            assert await ann.ask(said) == said.upper()
            await dispatcher.stop_polling()
            await running
            assert turns.runner is None


def test_turns_are_attached_to_a_router_or_an_application_once() -> None:
    turns = Turns("bot", storage="memory://")
    with pytest.raises(InvalidOption, match="attach\\(\\) takes a Router, a Dispatcher"):
        turns.attach(object())
    dispatcher = aiogram.Dispatcher()
    turns.attach(dispatcher)
    with pytest.raises(UsageError, match="attached to this dispatcher already"):
        turns.attach(dispatcher)
    application = ApplicationBuilder().token("42:token").build()
    turns.attach(application)
    with pytest.raises(UsageError, match="attached to this application already"):
        turns.attach(application)
    kinds = dispatcher.resolve_used_update_types()
    assert {"message", "edited_message", "callback_query", "stopped_message_generation"} <= set(kinds)
