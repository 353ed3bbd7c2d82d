"""A bot with an agent that runs in a process of its own: killed in a stream and in an album, and stopped."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from asyncio import create_subprocess_exec as spawn
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stepwell import Storage, open_storage
from stepwell.botapi import Bot, BotAPI, FloodLimits, Person
from stepwell.engine import TURNS
from stepwell.storage import Get
from stepwell.turns import Turns
from stepwell.turns.record import Running, table_of
from tests.until import until


@pytest.fixture
async def api() -> AsyncIterator[BotAPI]:
    async with BotAPI(limits=FloodLimits()) as api:
        yield api


@pytest.fixture
def bot(api: BotAPI, tmp_path: Path) -> Bot:
    shutil.copy(Path(__file__).with_name("agent_bot.py"), tmp_path)
    return api.bot("my_bot")


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[Storage]:
    async with open_storage(f"sqlite:///{tmp_path / 'bot.db'}") as storage:
        yield storage


@asynccontextmanager
async def running(api: BotAPI, bot: Bot, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    env = {**os.environ, "BOT_TOKEN": bot.token, "STEPWELL_STORAGE": f"sqlite:///{folder / 'bot.db'}"}
    process = await spawn(
        sys.executable, "-m", "stepwell", "run", "agent_bot.py", "--api", api.url,
        cwd=folder, env=env, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert b"is running" in await process.stdout.readline()
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


def shown(chat: Person) -> list[str]:
    return [message["text"] for message in chat.messages if message["from"]["is_bot"]]


async def turn_of(storage: Storage, chat: int) -> Running | None:
    address = storage.address(TURNS, ("my_bot", (chat, 0)))
    return table_of(storage.seal(address), await storage.perform(Get(address))).turn


async def test_a_bot_that_is_killed_in_the_stream_of_a_turn_completes_the_same_message(
    api: BotAPI, bot: Bot, storage: Storage, tmp_path: Path
) -> None:
    group = api.chat(bot, 42).group(-7)
    async with running(api, bot, tmp_path) as process:
        await group.send("Hi")
        await until(lambda: turn_of(storage, -7), lambda turn: turn is not None and turn.shown is not None)
        process.kill()
        await process.wait()
    assert shown(group) == ["Once upon a time"]
    async with running(api, bot, tmp_path):
        (tmp_path / "go").touch()
        await until(lambda: shown(group), lambda texts: texts != ["Once upon a time"])
        assert shown(group) == ["Once upon a time they lived."]


async def test_a_turn_is_stopped_by_its_draft_and_from_another_process(
    api: BotAPI, bot: Bot, storage: Storage, tmp_path: Path
) -> None:
    ann, ben = api.chat(bot, 42), api.chat(bot, 43)
    turns = Turns("my_bot", storage=storage)
    async with running(api, bot, tmp_path):
        await ann.send("Hi")
        await until(lambda: ann.room.drafts)
        await ann.stop()
        await until(lambda: shown(ann))
        await ben.send("Hi")
        await until(lambda: turn_of(storage, 43))
        await until(lambda: ben.room.drafts)
        assert await turns.stop((43, 0))
        await until(lambda: shown(ben))
        await ann.ask("/help")
    assert shown(ann) == ["Once upon a time [stopped]", "Ask me."]
    assert shown(ben) == ["Once upon a time [stopped]"]


async def test_an_album_whose_bot_is_killed_between_its_messages_is_one_turn(
    api: BotAPI, bot: Bot, storage: Storage, tmp_path: Path
) -> None:
    ann, turns = api.chat(bot, 42), Turns("my_bot", storage=storage)

    async def send(*captions: str) -> None:
        for caption in captions:
            await ann.send(photo=[{"file_id": caption}], caption=caption, media_group_id="1")

    async def waiting() -> int:
        return len((await turns.status((42, 0))).waiting)

    async with running(api, bot, tmp_path) as process:
        await send("a", "b")
        await until(waiting, lambda count: count == 2)
        process.kill()
        await process.wait()
    await send("c", "d")
    async with running(api, bot, tmp_path):
        await until(lambda: shown(ann))
        await ann.ask("/help")
    assert shown(ann) == ["a b c d", "Ask me."]
