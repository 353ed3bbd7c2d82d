"""aiogram bots in separate processes: killed between messages, and two behind one webhook."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.botapi import BotAPI
from tests.adapters.processes import Bots
from tests.adapters.scenarios import LARGE, REGISTRATION, WIZARD, Walk, check_kills
from tests.backends import Backend, Postgres, Redis

MODULE = "tests.adapters.aiogram_worker"
STYLES = {"ctx": "examples.aiogram_registration:make_dispatcher", "states": "examples.aiogram_states:make_dispatcher"}
HASTY = {
    "tests.adapters.walkers:make_hasty": REGISTRATION,
    "tests.adapters.walkers:make_hasty_wizard": WIZARD,
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("bots", ["poll", "hook"], indirect=True)
async def test_a_bot_killed_between_messages_continues(api: BotAPI, bots: Bots, style: str, tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/bot.db"
    chat = api.chat(bots.bot)
    await bots.listen()
    worker = bots.start(STYLES[style], storage)
    killed_before = range(1, 4) if LARGE else [2]
    answers = []
    for number, (said, _) in enumerate(REGISTRATION):
        if number in killed_before:
            # An answer is sent before the commit: between the two, it may be repeated.
            await bots.settled()
            worker.kill()
        await chat.send(said)
        if number in killed_before:
            # Messages sent while the bot is down are answered when it is back.
            worker = bots.start(STYLES[style], storage)
        answers.append(await bots.heard(chat))
    assert answers == [answer for _, answer in REGISTRATION]
    await bots.settled()
    assert "Error" not in bots.log()
    assert bots.bot.token not in bots.log()


@pytest.mark.parametrize("hasty", HASTY, ids=["registration", "wizard"])
@pytest.mark.parametrize("bots", ["poll", "hook"], indirect=True)
async def test_a_bot_killed_at_any_moment_loses_no_answer(api: BotAPI, bots: Bots, hasty: str, tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/bot.db"
    await bots.listen()
    bots.start(hasty, storage)
    kills = [number for number in range(4) for _ in range(3 if LARGE else 1)]
    await check_kills(api, bots, hasty, storage, HASTY[hasty], kills)


async def check_walk(walk: Walk, server: Backend, *, kills: int) -> None:
    url = server.place()
    await walk.run("tests.adapters.walkers:make_dispatcher", url, kills=kills)
    storage = server.storage(url)
    for chat in walk.chats:
        record = await storage.get_state("walkers", (chat.id, chat.id))
        walk.check(chat, record, "arrived", {} if record is None else record.data, ordered=not kills)
    walk.check_workers(2)


@pytest.mark.parametrize("bots", ["hook"], indirect=True)
async def test_two_workers_behind_one_webhook_make_each_transition_once(
    api: BotAPI, bots: Bots, shared_backend: Backend
) -> None:
    await check_walk(Walk(api, bots, users=200 if LARGE else 20), shared_backend, kills=0)


@pytest.mark.skipif(not LARGE, reason="set STEPWELL_DOSE=large to run it")
@pytest.mark.parametrize("server", [Redis, Postgres], indirect=True, ids=lambda server: server.name)
@pytest.mark.parametrize("bots", ["hook"], indirect=True)
async def test_killed_workers_behind_one_webhook_make_each_transition_once(
    api: BotAPI, bots: Bots, server: Backend
) -> None:
    await check_walk(Walk(api, bots, users=500), server, kills=10)
