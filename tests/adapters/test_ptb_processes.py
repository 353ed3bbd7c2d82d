"""Bots of python-telegram-bot in separate processes: killed at any moment, and two behind one webhook."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.botapi import BotAPI
from tests.adapters.processes import Bots
from tests.adapters.scenarios import LARGE, REGISTRATION, WIZARD, Walk, check_kills
from tests.backends import Backend, Postgres, Redis, SQLite

MODULE = "tests.adapters.ptb_worker"
BOTS = {"registration": REGISTRATION, "wizard": WIZARD}
STYLES = {"handler": "tests.adapters.ptb_walkers:make_handler", "flow": "tests.adapters.ptb_walkers:make_flow"}


@pytest.mark.parametrize(
    ("bots", "name"),
    [("poll", "registration"), ("hook", "wizard")] + ([("hook", "registration"), ("poll", "wizard")] if LARGE else []),
    indirect=["bots"],
)
async def test_a_bot_killed_at_any_moment_loses_no_update(api: BotAPI, bots: Bots, name: str, tmp_path: Path) -> None:
    make, storage = f"tests.adapters.ptb_walkers:make_{name}", f"sqlite:///{tmp_path}/bot.db"
    bots.start(make, storage)
    await bots.until_listening(1)
    await check_kills(api, bots, make, storage, BOTS[name], range(4) if LARGE else (1, 3))


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
    walk, url = Walk(api, bots, users=500 if LARGE else 10), server.place()
    await walk.run(STYLES[style], url, kills=10 if LARGE else 1)
    storage = server.storage(url)
    for chat in walk.chats:
        record = await storage.get_state("walkers", chat.id if style == "handler" else (chat.id, chat.id))
        found = {} if record is None else record.data
        data = {key.removeprefix("user_data."): value for key, value in found.items()}
        walk.check(chat, record, "1" if style == "handler" else "arrived", data)
        if style == "handler":
            assert data["chat_data.n"] == 10, f"seed {walk.seed}"
    # The system may give all connections of a few users to one worker.
    walk.check_workers(2 if LARGE else 1)
