"""An album whose bot is killed between two of its messages."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio import create_subprocess_exec as spawn
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from stepwell import open_storage
from stepwell.botapi import BotAPI, Person
from stepwell.botapi.world import Bot
from stepwell.fsm.conversation.extension import opened_extension
from stepwell.record import INBOX
from stepwell.storage import Get, Storage
from tests.until import until

BOT = Path(__file__).with_name("album_bot.py")


@asynccontextmanager
async def running(api: BotAPI, bot: Bot, url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    env = {**os.environ, "BOT_TOKEN": bot.token, "STEPWELL_STORAGE": url}
    process = await spawn(
        sys.executable, "-m", "stepwell", "run", str(BOT), "--api", api.url, env=env, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert b"is running" in await process.stdout.readline()
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


async def send(person: Person, *captions: str) -> None:
    for caption in captions:
        await person.send(photo=[{"file_id": caption}], caption=caption, media_group_id="1")


async def kept(storage: Storage) -> int:
    """Return how many messages of albums are kept, 0 while there are others in the inbox."""
    address = storage.address("my_bot", (42, 42))
    stored, inbox = (
        await storage.perform(Get(address)),
        await storage.perform(Get(storage.address(INBOX, "my_bot"), True)),
    )
    if stored is None or (inbox is not None and inbox.parts):
        return 0
    albums = opened_extension(storage.seal(address).open_head(stored.head).extension, address).albums
    return sum(len(album.updates) for album in albums)


async def test_an_album_whose_bot_is_killed_between_its_messages_is_handled_once(api: BotAPI, tmp_path: Path) -> None:
    bot = api.bot("my_bot")
    person = api.chat(bot, 42)
    url = f"sqlite:///{tmp_path / 'bot.db'}"
    async with running(api, bot, url) as process, open_storage(url) as storage:
        await send(person, "a", "b")
        await until(lambda: kept(storage), lambda count: count == 2)
        process.kill()
        await process.wait()
    await send(person, "c", "d")
    async with running(api, bot, url):
        assert await person.answer(timeout=30) == "a b c d"
        await person.send("quiet")
    answers = [message["text"] for message in person.messages if message["from"]["is_bot"]]
    assert answers == ["a b c d"]


async def test_an_album_whose_bot_is_killed_after_its_last_message_is_handled_once(api: BotAPI, tmp_path: Path) -> None:
    bot = api.bot("my_bot")
    person = api.chat(bot, 42)
    url = f"sqlite:///{tmp_path / 'bot.db'}"
    async with running(api, bot, url) as process, open_storage(url) as storage:
        await send(person, "a", "b")
        await until(lambda: kept(storage), lambda count: count == 2)
        process.kill()
        await process.wait()
    async with running(api, bot, url):
        assert await person.answer(timeout=30) == "a b"
