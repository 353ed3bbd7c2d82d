"""Bots and workers that start before their storage, as processes, with real servers."""

from __future__ import annotations

import asyncio
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stepwell.botapi import Bot, BotAPI
from stepwell.storage.sqlite.schema import APPLICATION
from stepwell.telegram import BotClient
from tests.servers.postgres import PostgresServer
from tests.servers.process import free_port
from tests.servers.redis import RedisServer
from tests.telegram.test_run_command import BOT, command

#: For a storage that gives up soon: its own patience comes before the first line of the log.
PATIENCE = "patience=0.3"


class Late(NamedTuple):
    """A server that is not started yet."""

    url: str
    address: str
    start: Callable[[], Any]


@pytest.fixture(params=["redis", "postgres"])
def late(request: pytest.FixtureRequest) -> Iterator[Late]:
    started: list[Any] = []
    port = free_port()
    if request.param == "redis":
        url = f"redis://:hunter2@127.0.0.1:{port}/0?{PATIENCE}"

        def start() -> None:
            started.append(RedisServer("--requirepass", "hunter2", port=port))

    else:
        server = PostgresServer(port=port)
        url = server.url(password="hunter2") + f"?{PATIENCE}"

        def start() -> None:
            started.append(server.start())

    yield Late(url, f"127.0.0.1:{port}", start)
    for each in started:
        each.stop()


@pytest.fixture
async def api() -> AsyncIterator[BotAPI]:
    async with BotAPI(webhook_pause=0.1) as api:
        yield api


@pytest.fixture
def bot(api: BotAPI) -> Bot:
    return api.bot("my_bot")


async def test_a_bot_that_starts_before_its_storage_waits_for_it(
    tmp_path: Path, api: BotAPI, bot: Bot, late: Late
) -> None:
    (tmp_path / "bot.py").write_text(BOT)
    arguments = ("run", "bot.py", "--api", api.url, "--storage", late.url)
    async with command(*arguments, folder=tmp_path, BOT_TOKEN=bot.token) as run:
        await run.until("waiting for the storage, ")
        # Several attempts follow without a line.
        await asyncio.sleep(2)
        await asyncio.to_thread(late.start)
        await run.until("the storage is available, after ")
        await run.until("is running")
        alice = api.chat(bot)
        assert await alice.ask("/register") == "What's your name?"
        assert await run.stop() == 0
    lines = [line for line in run.output.splitlines() if "waiting for the storage" in line]
    assert len(lines) == 1
    assert late.address in lines[0]
    assert "hunter2" not in run.output
    assert "Traceback" not in run.output


async def test_a_bot_with_no_wait_ends_with_one_line(tmp_path: Path, api: BotAPI, bot: Bot, late: Late) -> None:
    (tmp_path / "bot.py").write_text(BOT)
    for more in ((), ("--webhook", "https://example.com/", "--port", "0")):
        arguments = ("run", "bot.py", "--no-wait", "--api", api.url, "--storage", late.url, *more)
        async with command(*arguments, folder=tmp_path, BOT_TOKEN=bot.token) as run:
            output = (await run.process.communicate())[0].decode()
        assert run.process.returncode == 1
        assert output.count("\n") == 1
        assert output.startswith("stepwell: ")
        assert late.address in output
        assert "hunter2" not in output


async def test_a_webhook_that_starts_before_its_storage_registers_when_it_comes(
    tmp_path: Path, api: BotAPI, bot: Bot, late: Late
) -> None:
    (tmp_path / "bot.py").write_text(BOT)
    port = free_port()
    url = f"http://127.0.0.1:{port}/hook"
    arguments = ("run", "bot.py", "--webhook", url, "--port", str(port), "--api", api.url, "--storage", late.url)
    async with command(*arguments, folder=tmp_path, BOT_TOKEN=bot.token) as run:
        await run.until("waiting for the storage, ")
        async with BotClient(bot.token, api=api.url) as client:
            assert not (await client.call("getWebhookInfo"))["url"]
        await asyncio.to_thread(late.start)
        await run.until("serves the webhook")
        alice = api.chat(bot)
        await alice.send("/register")
        assert await alice.answer(timeout=60) == "What's your name?"
        assert await run.stop() == 0
    assert "Traceback" not in run.output


@pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit")
async def test_a_bot_that_starts_with_a_full_disk_waits_for_room(tmp_path: Path, api: BotAPI, bot: Bot) -> None:
    (tmp_path / "bot.py").write_text(BOT)
    async with command("run", "bot.py", "--api", api.url, folder=tmp_path, BOT_TOKEN=bot.token) as run:
        _, most = resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE)
        # Long before the bot has opened its file: Python is still importing.
        resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (0, most))
        await run.until("waiting for the storage, ")
        assert "is full" in run.output
        resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (most, most))
        await run.until("the storage is available, after ")
        assert await api.chat(bot).ask("/register") == "What's your name?"
        assert await run.stop() == 0


SERVED = """
import sys
import uvicorn
from stepwell.fsm import FSM, Router
from stepwell.telegram import webhook

router = Router(FSM("my_bot", storage=sys.argv[1], flows=[]))
uvicorn.run(webhook(router, secret_token="s3cret", token="1:a"), port=int(sys.argv[2]), lifespan="on")
"""


async def test_a_webhook_that_waits_for_its_storage_stops_at_a_signal(tmp_path: Path, late: Late) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVED, late.url, str(free_port()),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=tmp_path,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            while b"waiting for the storage" not in (line := await process.stdout.readline()):
                assert line
            process.send_signal(signal.SIGTERM)
            output = (await process.communicate())[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert "Traceback" not in output


WORKER = """
import asyncio, logging, sys
from stepwell.nodes import Node, linear, worker

logging.basicConfig(format="%(message)s")

class Say(Node):
    def exec(self, prep_res):
        print("ran", flush=True)

async def main():
    flow = linear(Say, name="say", storage=sys.argv[1])
    jobs = worker([flow])
    working = asyncio.create_task(jobs.run())
    while not jobs.storage.is_open and not working.done():
        await asyncio.sleep(0.05)
    if not working.done():
        await flow.submit({})
    await working

asyncio.run(main())
"""


def test_a_worker_that_starts_before_its_storage_waits_for_it(late: Late) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, late.url], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("waiting for the storage, ")
        late.start()
        assert process.stdout.readline().startswith("the storage is available, after ")
        assert process.stdout.readline() == "ran\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ("redis://:wrong@{redis}/0", "refuses the user or password"),
        ("redis://:hunter2@{redis}/99", "has no database 99"),
        ("postgresql://postgres@{postgres}/nowhere", 'database "nowhere" does not exist'),
        ("postgresql://guarded:wrong@{postgres}/postgres", "password authentication failed"),
        ("sqlite:////nonexistent/bot.db", "the folder /nonexistent does not exist"),
        ("sqlite:///{folder}/newer.db", "has schema 99, this release supports up to 1"),
    ],
)
async def test_an_error_that_waiting_does_not_solve_ends_a_bot_at_once(
    tmp_path: Path, api: BotAPI, bot: Bot, wrong: str, error: str
) -> None:
    (tmp_path / "bot.py").write_text(BOT)
    server: Any = None
    if "{redis}" in wrong:
        server = RedisServer("--requirepass", "hunter2")
    elif "{postgres}" in wrong:
        server = PostgresServer().start()
    try:
        address = f"127.0.0.1:{server.port}" if server else ""
        url = wrong.format(redis=address, postgres=address, folder=tmp_path)
        with closing(sqlite3.connect(tmp_path / "newer.db")) as newer:
            newer.execute(f"PRAGMA application_id = {APPLICATION}")
            newer.execute("PRAGMA user_version = 99")
        began = time.monotonic()
        async with command(
            "run", "bot.py", "--api", api.url, "--storage", url, folder=tmp_path, BOT_TOKEN=bot.token
        ) as run:
            output = (await run.process.communicate())[0].decode()
        assert time.monotonic() - began < 30
    finally:
        if server is not None:
            server.stop()
    assert run.process.returncode == 1
    assert output.startswith("stepwell: ")
    assert output.count("\n") == 1
    assert error in output
    assert "hunter2" not in output
    assert ":wrong@" not in output
