"""A full disk raises StorageFull, loses nothing, and writes succeed again when there is space."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell import SQLiteStorage, State
from stepwell.errors import StorageFull

BOT = "bot"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.getuid() != 0:
        pytest.skip("only root can mount a small disk; the test with a limit on the size of files still runs")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("this root may not mount; the test with a limit on the size of files still runs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def test_a_full_disk_is_an_error_that_loses_nothing(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 1_000_000)
    async with SQLiteStorage(str(small_disk / "bot.db"), sweep_every=None) as storage:
        written = await fill(storage)
        assert len(written) > 50
        with pytest.raises(StorageFull, match="is full"):
            await storage.set_state(BOT, "one more", State(data={"text": "y" * 100_000}))
        for key, text in written.items():
            assert await storage.get_data(BOT, key) == {"text": text}
        ballast.unlink()
        await storage.set_state(BOT, "one more", State(data={"text": "y" * 100_000}))
    async with SQLiteStorage(str(small_disk / "bot.db")) as storage:
        assert await storage.get_data(BOT, "one more") == {"text": "y" * 100_000}
        for key, text in written.items():
            assert await storage.get_data(BOT, key) == {"text": text}


async def fill(storage: SQLiteStorage) -> dict[int, str]:
    written: dict[int, str] = {}
    for key in range(2000):
        text = f"{key} " * 500
        try:
            await storage.set_state(BOT, key, State(data={"text": text}))
        except StorageFull:
            return written
        written[key] = text
    raise AssertionError("the disk never was full")


async def test_opening_a_file_on_a_full_disk_is_an_error_that_names_it(small_disk: Path) -> None:
    with pytest.raises(OSError, match="No space left"), (small_disk / "ballast").open("wb", buffering=0) as ballast:
        while True:
            ballast.write(b"x" * 4096)
    with pytest.raises(StorageFull, match="is full"):
        await SQLiteStorage(str(small_disk / "bot.db")).set_state(BOT, 1, State())


def test_a_limit_on_the_size_of_files_is_an_error_that_loses_nothing(tmp_path: Path) -> None:
    script = """
        import asyncio, resource, sys
        from stepwell import SQLiteStorage, State
        from stepwell.errors import StorageFull

        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))

        async def main():
            async with SQLiteStorage(sys.argv[1]) as storage:
                for number in range(3000):
                    try:
                        await storage.set_state("bot", number, State(data={"text": str(number) * 1000}))
                    except StorageFull:
                        break
                else:
                    raise AssertionError("the limit was never reached")
                assert number > 50, number
                for key in range(number):
                    assert await storage.get_data("bot", key) == {"text": str(key) * 1000}
                resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
                await storage.set_state("bot", number, State(data={"text": "on it goes"}))
            print(number)

        asyncio.run(main())
    """
    run = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "bot.db")]
    done = subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True, timeout=60)
    assert int(done.stdout) > 50
