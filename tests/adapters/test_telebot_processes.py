"""telebot bots in separate processes behind one webhook and one Redis, and the example by polling."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from telebot import TeleBot, apihelper

from examples import telebot_registration
from stepwell import open_storage
from stepwell.playground.botapi import BotAPI, Person
from stepwell.playground.botapi.webhook import WebhookInfo
from tests.backends.redis import Redis
from tests.servers.process import free_port

LARGE = os.environ.get("STEPWELL_DOSE") == "large"
USERS, KILLS = (500, 10) if LARGE else (10, 1)
TEXTS = [f"text {number}" for number in range(10)]
PATIENCE = 600.0 if LARGE else 60.0


async def test_the_registration_example_by_polling_and_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with BotAPI() as api:
        monkeypatch.setattr(apihelper, "API_URL", f"{api.url}/bot{{0}}/{{1}}")
        chat = api.chat(api.bot("my_bot"))
        bob = chat.user(7)

        async def started() -> tuple[TeleBot, asyncio.Task[None]]:
            bot = telebot_registration.make_bot(chat.bot.token, f"sqlite:///{tmp_path}/bot.db")
            return bot, asyncio.create_task(asyncio.to_thread(bot.infinity_polling, timeout=5, long_polling_timeout=1))

        bot, polling = await started()
        assert await chat.ask("/register") == "What's your name?"
        assert await bob.ask("/register") == "What's your name?"
        assert await chat.ask("Alice") == "Got it, Alice! What's your email?"
        assert await bob.ask("/cancel") == "Cancelled."
        await asyncio.to_thread(bot.stop_bot)
        await polling
        bot, polling = await started()
        assert await chat.ask("alice@example.com") == "Please confirm."
        assert await chat.ask("yes") == "Registered! Welcome, Alice!"
        await asyncio.to_thread(bot.stop_bot)
        await polling
        await asyncio.to_thread(apihelper._get_req_session().close)


async def test_two_killed_workers_behind_one_webhook_handle_each_message_once(tmp_path: Path) -> None:
    backend = Redis(tmp_path)
    url, port = backend.place(), free_port()
    async with BotAPI(webhook_pause=0.05) as api:
        bot = api.bot("walk_bot")

        async def start() -> subprocess.Popen[str]:
            command = [sys.executable, "-m", "tests.adapters.telebot_worker", url, api.url, bot.token, str(port)]
            worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert worker.stdout is not None
            assert await asyncio.to_thread(worker.stdout.readline) == "listening\n"
            return worker

        workers = list(await asyncio.gather(start(), start()))
        try:
            await api.webhooks.set(bot, WebhookInfo(f"http://127.0.0.1:{port}/hook", None, 40))
            first = api.chat(bot)
            people = [first.user(number) for number in range(1000, 1000 + USERS)]
            sending = asyncio.create_task(send_all(people))
            for _ in range(KILLS):
                await asyncio.sleep(random.uniform(0, 0.3))
                worker = workers.pop(0)
                worker.kill()
                worker.communicate()
                workers.append(await start())
            await sending
            async with asyncio.timeout(PATIENCE):
                while bot.updates.pending:
                    await asyncio.sleep(0.02)
        finally:
            for worker in workers:
                worker.kill()
                worker.communicate()
    async with open_storage(url) as storage:
        for person in people:
            found = await storage.get_state("walk_bot", (person.me["id"], person.me["id"]))
            assert found is not None
            assert (found.flow, found.state) == ("walk", "right")
            # A redelivered update may overtake others.
            assert sorted(found.data["texts"]) == TEXTS
    await backend.close()


async def send_all(people: list[Person]) -> None:
    """Send all messages as fast as possible; deliver every twentieth again."""
    for number, text in enumerate(TEXTS):
        for person in people:
            await person.send(text)
            if (number * len(people) + people.index(person)) % 20 == 0:
                await person.redeliver()
