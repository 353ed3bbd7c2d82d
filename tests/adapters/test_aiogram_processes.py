"""aiogram bots in separate processes: killed between messages, and two behind one webhook."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from stepwell.playground.botapi import BotAPI
from tests.adapters.processes import PATIENCE, Bots, close_nursery
from tests.backends import Backend

MODULE = "tests.adapters.aiogram_worker"
LARGE = os.environ.get("STEPWELL_DOSE") == "large"
CONVERSATION = [
    ("/register", "What's your name?"),
    ("Alice", "Got it, Alice! What's your email?"),
    ("alice@example.com", "Please confirm."),
    ("yes", "Registered! Welcome, Alice!"),
]
STYLES = {"ctx": "examples.aiogram_registration:make_dispatcher", "states": "examples.aiogram_states:make_dispatcher"}
HASTY = "tests.adapters.walkers:make_hasty"


@pytest.fixture(scope="module", autouse=True)
def nursery() -> Iterator[None]:
    yield
    close_nursery(MODULE)


@pytest.fixture
async def api() -> AsyncIterator[BotAPI]:
    async with BotAPI(webhook_pause=0.05) as api:
        yield api


@pytest.fixture
def bots(api: BotAPI, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bots]:
    bots = Bots(MODULE, api, tmp_path, request.param)
    yield bots
    bots.kill()


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("bots", ["poll", "hook"], indirect=True)
async def test_a_bot_killed_between_messages_continues(api: BotAPI, bots: Bots, style: str, tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/bot.db"
    chat = api.chat(bots.bot)
    await bots.listen()
    worker = bots.start(STYLES[style], storage)
    killed_before = range(1, 4) if LARGE else [2]
    answers = []
    for number, (said, _) in enumerate(CONVERSATION):
        if number in killed_before:
            # An answer is sent before the commit: between the two, it may be repeated.
            await bots.settled()
            worker.kill()
        await chat.send(said)
        if number in killed_before:
            # Messages sent while the bot is down are answered when it is back.
            worker = bots.start(STYLES[style], storage)
        answers.append(await bots.heard(chat))
    assert answers == [answer for _, answer in CONVERSATION]
    await bots.settled()
    assert "Error" not in bots.log()
    assert bots.bot.token not in bots.log()


@pytest.mark.parametrize("bots", ["poll", "hook"], indirect=True)
async def test_a_bot_killed_at_any_moment_loses_no_answer(api: BotAPI, bots: Bots, tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/bot.db"
    chat = api.chat(bots.bot)
    await bots.listen()
    worker = bots.start(HASTY, storage)
    for said, answer in CONVERSATION:
        await chat.send(said)
        for _ in range(3 if LARGE else 1):
            await asyncio.sleep(random.uniform(0, 0.05))
            worker.kill()
            worker = bots.start(HASTY, storage)
        async with asyncio.timeout(PATIENCE):
            while chat.last != answer:
                await chat.hear(timeout=PATIENCE)
        await bots.settled()
    # At least once, and never anything else or out of order.
    said_by_bot = [message["text"] for message in chat.messages if message["from"]["is_bot"]]
    assert list(dict.fromkeys(said_by_bot)) == [answer for _, answer in CONVERSATION]
    assert said_by_bot == sorted(said_by_bot, key=[answer for _, answer in CONVERSATION].index)


@pytest.mark.parametrize("bots", ["hook"], indirect=True)
async def test_two_workers_behind_one_webhook_make_each_transition_once(
    api: BotAPI, bots: Bots, shared_backend: Backend
) -> None:
    users = 200 if LARGE else 20
    seed = random.randrange(10**6)
    dice = random.Random(seed)
    url = shared_backend.place()
    for _ in range(2):
        bots.start("tests.adapters.walkers:make_dispatcher", url)
    chats = [api.chat(bots.bot, user=1000 + number) for number in range(users)]
    again = set()
    for number in range(10):
        for chat in chats:
            await chat.send(str(number))
            if dice.random() < 0.05:
                await chat.redeliver()
                again.add(chat.id)
    # A connection stays with the worker that accepted it, so both must be running first.
    await bots.until_listening(2)
    await bots.listen()
    await bots.settled(PATIENCE * 3)
    storage = shared_backend.storage(url)
    workers: Counter[int] = Counter()
    for chat in chats:
        record = await storage.get_state("walkers", (chat.id, chat.id))
        assert record is not None, f"seed {seed}: {chat.id} is missing; {bots.log()[-2000:]}"
        assert (record.flow, record.state) == ("walk", "arrived"), f"seed {seed}"
        # A redelivered update may overtake others; the rest keeps its order.
        steps = sorted(record.data["steps"]) if chat.id in again else record.data["steps"]
        assert steps == [str(number) for number in range(10)], f"seed {seed}"
        workers.update(record.data["by"])
    assert again
    assert len(workers) == 2, f"only one worker did anything: {workers}"
    assert sum(workers.values()) == users * 10
