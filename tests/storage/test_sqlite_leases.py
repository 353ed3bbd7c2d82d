"""Leases do not depend on the time of day, which may be changed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from stepwell import SQLiteStorage
from stepwell.slot import Slot
from stepwell.storage import Claim, Claimed, Taken
from stepwell.testing import Clock

HOUR = 3600.0


@pytest.mark.parametrize("jump", [-HOUR, HOUR], ids=["back", "forward"])
async def test_a_lease_keeps_its_length_when_the_time_of_day_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    path, offset, real = str(tmp_path / "bot.db"), 0.0, time.time
    monkeypatch.setattr(time, "time", lambda: real() + offset)
    async with SQLiteStorage(path) as dead, SQLiteStorage(path) as other:
        address = dead.address("bot", 1)
        claimed_at = time.monotonic()
        assert isinstance(await dead.perform(Claim(address, "dead", 0.5)), Claimed)
        offset = jump
        found = await other.perform(Claim(address, "other", 30.0))
        assert isinstance(found, Taken) or time.monotonic() > claimed_at + 0.5
        async with asyncio.timeout(10), Slot(other, "bot", 1, wait=10):
            assert time.monotonic() >= claimed_at + 0.5


@pytest.mark.parametrize("jump", [-HOUR, HOUR], ids=["back", "forward"])
async def test_a_holder_keeps_its_lease_when_the_time_of_day_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    offset, real = 0.0, time.time
    monkeypatch.setattr(time, "time", lambda: real() + offset)
    async with SQLiteStorage(str(tmp_path / "bot.db")) as storage:
        async with Slot(storage, "bot", 1) as slot:
            slot.data["a"] = 1
            await slot.commit(keep=True)
            offset = jump
            slot.data["a"] = 2
            await slot.commit(keep=True)
            await storage.sweep()
            assert isinstance(await storage.perform(Claim(slot.address, "other", 30.0)), Taken)
            slot.data["a"] = 3
            await slot.commit()
        assert await storage.get_data("bot", 1) == {"a": 3}


async def test_a_lease_that_ends_later_than_its_length_has_ended(tmp_path: Path, clock: Clock) -> None:
    """The clock restarts with the machine, and a clock that is passed in may be set back."""
    async with SQLiteStorage(str(tmp_path / "bot.db"), clock=clock) as storage:
        address = storage.address("bot", 1)
        assert isinstance(await storage.perform(Claim(address, "dead", 30.0)), Claimed)
        clock.advance(-HOUR)
        assert isinstance(await storage.perform(Claim(address, "other", 30.0)), Claimed)
        assert isinstance(await storage.perform(Claim(address, "dead", 30.0)), Taken)
        clock.advance(-HOUR)
        await storage.sweep()
        assert isinstance(await storage.perform(Claim(address, "dead", 30.0)), Claimed)
