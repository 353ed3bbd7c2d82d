"""A bot that is killed while it streams an answer."""

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

from stepwell import open_storage
from stepwell.botapi import BotAPI, FloodLimits
from stepwell.record import SHOWN
from tests.until import until


@asynccontextmanager
async def running(api: BotAPI, token: str, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    env = {**os.environ, "BOT_TOKEN": token, "STEPWELL_STORAGE": f"sqlite:///{folder / 'bot.db'}"}
    process = await spawn(
        sys.executable, "-m", "stepwell", "run", "stream_bot.py", "--api", api.url,
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


async def test_a_bot_that_is_killed_in_a_stream_completes_the_same_message(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).with_name("stream_bot.py"), tmp_path)
    async with BotAPI(limits=FloodLimits()) as api:
        bot = api.bot("my_bot")
        group = api.chat(bot, 42).group(-7)

        def shown() -> list[str]:
            return [message["text"] for message in group.messages if message["from"]["is_bot"]]

        async with (
            running(api, bot.token, tmp_path) as process,
            open_storage(f"sqlite:///{tmp_path}/bot.db") as storage,
        ):
            await group.send("Hi")
            await until(lambda: storage.scan(SHOWN))
            process.kill()
            await process.wait()
            assert shown() == ["Once upon a time"]
        async with running(api, bot.token, tmp_path):
            (tmp_path / "go").touch()
            await until(shown, lambda texts: texts != ["Once upon a time"])
            assert shown() == ["Once upon a time they lived."]
