"""A broadcast that is killed again and again: every chat gets the message, and few get it twice."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio import create_subprocess_exec as spawn
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest

from stepwell.botapi import BotAPI
from stepwell.botapi.world import WorldEvent
from stepwell.nodes.batch.durable import UNSAVED
from tests.backends import Backend
from tests.reliability.dose import LARGE, dose, seeded

ROOT = Path(__file__).parents[2]
#: The calls under way in a broadcast.
CONCURRENCY = 10


async def test_a_killed_broadcast_reaches_every_chat_and_repeats_only_the_last_few(shared_backend: Backend) -> None:
    if not LARGE and shared_backend.name not in ("sqlite", "postgres"):
        pytest.skip("the large dose runs on all backends")
    choose = seeded()
    kills, chats = dose("BROADCAST_KILLS", 2, 100), dose("BROADCAST_CHATS", 300, 100_000)
    storage = shared_backend.place()
    received = 0
    arrived = asyncio.Event()

    def on_event(event: WorldEvent) -> None:
        nonlocal received
        if event.kind == "message":
            received += 1
            arrived.set()

    async def start() -> Process:
        arguments = ("-m", "tests.reliability.broadcast_process", api.url, bot.token, storage, str(chats))
        env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/src"}
        return await spawn(sys.executable, *arguments, env=env, cwd=ROOT, stdout=PIPE)

    async with BotAPI() as api:
        bot = api.bot("my_bot")
        for chat in range(1, chats + 1):
            api.chat(bot, chat)
        await api.chat(bot, 5).block()
        api.world.watch(on_event)
        for kill_at in sorted(choose.sample(range(1, chats - 50), kills)):
            process = await start()
            async with asyncio.timeout(60 + chats / 100):
                while received < kill_at:
                    arrived.clear()
                    await arrived.wait()
            await asyncio.sleep(choose.uniform(0, 0.02))
            process.kill()
            await process.wait()
        process = await start()
        async with asyncio.timeout(60 + chats / 100):
            printed, _ = await process.communicate()
    assert printed.split() == [str(chats - 1).encode(), b"5"]
    counts = [len(api.world.private(bot, chat).messages) for chat in range(1, chats + 1)]
    assert [chat for chat, count in enumerate(counts, 1) if not count] == [5]
    repeated = sum(counts) - (chats - 1)
    print(f"{kills} kills, {chats} chats, {repeated} repeated")
    assert repeated <= kills * (UNSAVED + CONCURRENCY)
