"""Bots of python-telegram-bot in separate processes: killed at any moment, and two behind one webhook."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from stepwell.playground.botapi import BotAPI, Person
from tests.adapters.processes import PATIENCE, Bots, close_nursery
from tests.backends import Backend, Postgres, Redis, SQLite

MODULE = "tests.adapters.ptb_worker"
LARGE = os.environ.get("STEPWELL_DOSE") == "large"
REGISTRATION = [
    ("/register", "What's your name?"),
    ("Alice", "Got it, Alice! What's your email?"),
    ("alice@example.com", "Please confirm."),
    ("yes", "Registered! Welcome, Alice!"),
]
WIZARD = [
    ("/register", "What's your name?"),
    ("Alice", "What's your email?"),
    ("alice@example.com", "Alice, alice@example.com: is that right?"),
    ("Confirm", "Registered! Welcome, Alice!"),
]
BOTS = {"registration": REGISTRATION, "wizard": WIZARD}
STYLES = {"handler": "tests.adapters.ptb_walkers:make_handler", "flow": "tests.adapters.ptb_walkers:make_flow"}


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


@pytest.fixture
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    backend = request.param(tmp_path)
    yield backend
    await backend.close()


async def say(chat: Person, text: str) -> None:
    if text == "Confirm":
        await chat.press(text)
    else:
        await chat.send(text)


@pytest.mark.parametrize(
    ("bots", "name"),
    [("poll", "registration"), ("hook", "wizard")] + ([("hook", "registration"), ("poll", "wizard")] if LARGE else []),
    indirect=["bots"],
)
async def test_a_bot_killed_at_any_moment_loses_no_update(api: BotAPI, bots: Bots, name: str, tmp_path: Path) -> None:
    make, storage = f"tests.adapters.ptb_walkers:make_{name}", f"sqlite:///{tmp_path}/bot.db"
    chat, conversation = api.chat(bots.bot), BOTS[name]
    worker = bots.start(make, storage)
    await bots.until_listening(1)
    for number, (said, answer) in enumerate(conversation):
        await say(chat, said)
        if LARGE or number in (1, 3):
            await asyncio.sleep(random.uniform(0, 0.05))
            worker.kill()
            worker = bots.start(make, storage)
        async with asyncio.timeout(PATIENCE):
            while chat.last != answer:
                try:
                    await chat.hear(timeout=PATIENCE)
                except TimeoutError:
                    raise AssertionError(f"no answer to {said!r}; the workers said:\n{bots.log()[-3000:]}") from None
        await bots.settled()
    # At least once, and never anything else or out of order.
    texts = [message["text"] for message in chat.messages if message["from"]["is_bot"]]
    expected = [answer for _, answer in conversation]
    assert list(dict.fromkeys(texts)) == expected
    assert texts == sorted(texts, key=expected.index)
    assert bots.bot.token not in bots.log()


@pytest.mark.parametrize(
    ("server", "style"),
    [(Redis, "handler"), (Postgres, "flow")]
    + ([(Redis, "flow"), (Postgres, "handler"), (SQLite, "handler")] if LARGE else []),
    indirect=["server"],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
@pytest.mark.parametrize("bots", ["own"], indirect=True)
async def test_two_workers_behind_one_webhook_make_each_transition_once(
    api: BotAPI, bots: Bots, server: Backend, style: str
) -> None:
    users, kills = (500, 10) if LARGE else (10, 1)
    seed = random.randrange(10**6)
    dice = random.Random(seed)
    url = server.place()
    for _ in range(2):
        bots.start(STYLES[style], url)
    chats = [api.chat(bots.bot, user=1000 + number) for number in range(users)]
    again = 0
    for number in range(10):
        for chat in chats:
            await chat.send(str(number))
            if dice.random() < 0.05 or not again:
                await chat.redeliver()
                again += 1
    # A connection stays with the worker that accepted it, so both must be running first.
    await bots.until_listening(2)
    await bots.listen()
    total = len(bots.bot.updates.pending)
    for kill in range(1, kills + 1):
        async with asyncio.timeout(PATIENCE * 3):
            while len(bots.bot.updates.pending) > total * (1 - kill / (kills + 1)):
                await asyncio.sleep(0.01)
        bots.workers[-2].kill()
        bots.start(STYLES[style], url)
        await bots.until_listening(2 + kill)
    await bots.settled(PATIENCE * (10 if LARGE else 3))
    assert again
    storage = server.storage(url)
    workers: Counter[int] = Counter()
    for chat in chats:
        record = await storage.get_state("walkers", chat.id if style == "handler" else (chat.id, chat.id))
        assert record is not None, f"seed {seed}: {chat.id} is missing; {bots.log()[-2000:]}"
        arrived = "1" if style == "handler" else "arrived"
        assert (record.flow, record.state) == ("walk", arrived), f"seed {seed}: {record}"
        data = {key.removeprefix("user_data."): value for key, value in record.data.items()}
        # Updates that are delivered again may overtake others.
        assert sorted(data["steps"]) == [str(number) for number in range(10)], f"seed {seed}"
        if style == "handler":
            assert data["chat_data.n"] == 10, f"seed {seed}"
        workers.update(data["by"])
    assert sum(workers.values()) == users * 10
    # The system may give all connections of a few users to one worker.
    assert len(workers) >= (2 if LARGE else 1), f"only one worker did anything: {workers}"
