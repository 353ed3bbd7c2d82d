from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from examples.file_storage import FileStorage

from stepwell import Storage
from stepwell.errors import CorruptRecord, Unsupported
from stepwell.testing import Clock, KeyValueContract


class TestFileStorage(KeyValueContract):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path

    def open_storage(self, clock: Clock) -> Storage:
        return FileStorage(self.path, clock=clock)


async def test_records_survive_a_new_storage_object(tmp_path: Path) -> None:
    async with FileStorage(tmp_path) as storage:
        await storage.update_data("bot", 1, {"a": (1, 2)})
    async with FileStorage(tmp_path) as storage:
        assert await storage.update_data("bot", 1, {"b": 1}) == {"a": (1, 2), "b": 1}


async def test_clear_leaves_only_a_tombstone_that_goes_after_a_day(tmp_path: Path, clock: Clock) -> None:
    async with FileStorage(tmp_path, clock=clock) as storage:
        await storage.update_data("bot", 1, {"a": 1})
        await storage.clear("bot", 1)
        clock.advance(100_000)
        assert await storage.get_state("bot", 1) is None
        assert list(tmp_path.iterdir()) == []


async def test_what_it_cannot_do_it_says(tmp_path: Path) -> None:
    async with FileStorage(tmp_path) as storage:
        with pytest.raises(Unsupported, match="FileStorage cannot list its records"):
            [entry async for entry in storage.scan("bot")]
        with pytest.raises(Unsupported, match="deadlines"):
            await storage.due("bot")
        with pytest.raises(Unsupported, match="sweep"):
            await storage.sweep()


async def test_a_damaged_file_harms_only_its_key(tmp_path: Path) -> None:
    async with FileStorage(tmp_path) as storage:
        await storage.update_data("bot", 1, {"a": 1})
        for path in tmp_path.iterdir():
            path.write_text(path.read_text()[:-20])
        await storage.update_data("bot", 2, {"a": 1})
        with pytest.raises(CorruptRecord):
            await storage.get_state("bot", 1)
        results = await asyncio.gather(
            storage.get_data("bot", 1), storage.get_data("bot", 2), storage.get_data("bot", 3), return_exceptions=True
        )
        assert [isinstance(result, CorruptRecord) for result in results] == [True, False, False]
        assert results[1:] == [{"a": 1}, None]


def test_the_example_runs() -> None:
    done = subprocess.run([sys.executable, "examples/file_storage.py"], capture_output=True, text=True, check=True)
    assert "State(flow='registration', state='get_name', data={'name': 'Alice'})" in done.stdout
