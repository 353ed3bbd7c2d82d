"""telebot's bots in separate processes: killed at any moment, and two behind one webhook."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.botapi import BotAPI
from tests.adapters.processes import Bots
from tests.adapters.scenarios import LARGE, REGISTRATION, WIZARD, Walk, check_kills
from tests.backends import Backend, Postgres, Redis

MODULE = "tests.adapters.telebot_worker"
BOTS = {"registration": REGISTRATION, "wizard": WIZARD}


@pytest.mark.parametrize("name", BOTS)
@pytest.mark.parametrize("bots", ["poll", "hook"], indirect=True)
async def test_an_example_killed_at_any_moment_loses_no_update(
    api: BotAPI, bots: Bots, name: str, tmp_path: Path
) -> None:
    make, storage = f"tests.adapters.telebot_walkers:make_{name}", f"sqlite:///{tmp_path}/bot.db"
    await bots.listen()
    bots.start(make, storage)
    await check_kills(api, bots, make, storage, BOTS[name], range(4) if LARGE else (1, 3))


@pytest.mark.parametrize(
    ("server", "style"),
    [(Redis, "sync"), (Postgres, "async")] + ([(Redis, "async"), (Postgres, "sync")] if LARGE else []),
    indirect=["server"],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
@pytest.mark.parametrize("bots", ["hook"], indirect=True)
async def test_two_workers_behind_one_webhook_make_each_transition_once(
    api: BotAPI, bots: Bots, server: Backend, style: str
) -> None:
    walk, url = Walk(api, bots, users=500 if LARGE else 10), server.place()
    await walk.run(f"tests.adapters.telebot_walkers:make_{style}_walk", url, kills=10 if LARGE else 1)
    storage = server.storage(url)
    for chat in walk.chats:
        record = await storage.get_state("walkers", (chat.id, chat.id))
        walk.check(chat, record, "arrived", {} if record is None else record.data)
    # The system may give all connections of a few users to one worker.
    walk.check_workers(2 if LARGE else 1)
