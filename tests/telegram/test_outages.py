"""A storage that fails under a running bot: no update is lost, the log has few lines, and all chats go on after it."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from examples import registration
from stepwell import Storage, open_storage
from stepwell.botapi import Person
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer
from tests.telegram.test_polling import polling
from tests.telegram.test_webhook import serving
from tests.until import until


class Failing:
    """A storage, and how its server or file fails and works again."""

    def __init__(self, storage: Storage, fail: Callable[[], Any], repair: Callable[[], Any]) -> None:
        self.storage = storage
        self.fail = fail
        self.repair = repair


@contextmanager
def stopped_redis(folder: Path) -> Iterator[Failing]:
    server = RedisServer()
    try:
        storage = open_storage(server.url(), timeout=0.2, patience=0.3)
        yield Failing(storage, server.process.pause, lambda: server.process.resume())
    finally:
        server.stop()


@contextmanager
def restarted_redis(folder: Path) -> Iterator[Failing]:
    server = RedisServer("--appendonly", "yes", "--appendfsync", "always")
    try:
        yield Failing(open_storage(server.url(), patience=0.3), lambda: server.process.kill(), server.start)
    finally:
        server.stop()


@contextmanager
def restarted_postgres(folder: Path) -> Iterator[Failing]:
    server = PostgresServer(durable=True).start()
    try:
        yield Failing(open_storage(server.url(), patience=0.3), server.kill, server.start)
    finally:
        server.stop()


@contextmanager
def read_only_sqlite(folder: Path) -> Iterator[Failing]:
    # The folders of the tests may be in memory, where files do not have this attribute.
    with tempfile.TemporaryDirectory(prefix="stepwell-") as name:
        folder = Path(name)

        def change(option: str) -> None:
            files = [str(file) for file in folder.iterdir() if file.name in ("bot.db", "bot.db-wal")]
            if subprocess.run(["chattr", option, *files], check=False, capture_output=True).returncode:
                pytest.skip("only root can make an open file read-only, on a file system with this attribute")

        try:
            storage = open_storage(f"sqlite:///{folder}/bot.db")
            yield Failing(storage, lambda: change("+i"), lambda: change("-i"))
        finally:
            subprocess.run(["chattr", "-R", "-i", str(folder)], check=False, capture_output=True)


@contextmanager
def full_disk(folder: Path) -> Iterator[Failing]:
    disk = folder / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    ballast = disk / "ballast"

    def fill() -> None:
        with ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    try:
        yield Failing(open_storage(f"sqlite:///{disk}/bot.db"), fill, ballast.unlink)
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@asynccontextmanager
async def by_polling(storage: Storage) -> AsyncIterator[Callable[[int], Person]]:
    async with polling(registration.make_router(storage)) as running:
        yield running.person


@asynccontextmanager
async def by_webhook(storage: Storage) -> AsyncIterator[Callable[[int], Person]]:
    async with serving(registration.make_router(storage)) as served:
        yield served.person


@pytest.mark.parametrize("runner", [by_polling, by_webhook])
@pytest.mark.parametrize("failing", [stopped_redis, restarted_redis, restarted_postgres, read_only_sqlite, full_disk])
async def test_an_outage_loses_no_update_and_is_logged_once(
    failing: Any, runner: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with failing(tmp_path) as outage:
        async with runner(outage.storage) as person:
            people = [person(42 + number) for number in range(5)]
            for each in people:
                assert await each.ask("/register") == "What's your name?"
            outage.fail()
            try:
                for number, each in enumerate(people):
                    await each.send(f"N{number} " + "x" * 3000)
                await until(lambda: "updates wait for the storage" in caplog.text)
                # Retries of all updates follow within this time.
                await asyncio.sleep(1.0)
            finally:
                outage.repair()
            for number, each in enumerate(people):
                assert (await each.answer(timeout=20)).startswith(f"Got it, N{number} ")
            assert await person(99).ask("/register") == "What's your name?"
            for each in people:
                assert await each.ask("a@example.com") == "Please confirm."
    lines = [record.getMessage() for record in caplog.records if record.levelname != "INFO"]
    assert len([line for line in lines if line.startswith("updates wait for the storage: ")]) == 1
    # Timers and checkpoints may have one line each, and one when they work again.
    assert len(lines) <= 5, lines
