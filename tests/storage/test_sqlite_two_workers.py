"""Two workers on one file see each other's writes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from stepwell import MemoryStorage, SQLiteStorage, copy_records
from stepwell.errors import LeaseLost, RecordReplaced, StorageFull, TooLarge
from stepwell.record import Limits, Stored, Version
from stepwell.slot import Slot
from stepwell.storage import Get
from stepwell.testing import Clock

BOT, KEY = "bot", 1


@pytest.fixture
async def two(tmp_path: Path, clock: Clock) -> AsyncIterator[tuple[SQLiteStorage, SQLiteStorage]]:
    """Two storages on one file."""
    path = str(tmp_path / "bot.db")
    async with SQLiteStorage(path, clock=clock) as one, SQLiteStorage(path, clock=clock) as other:
        yield one, other


def stored_size(storage: SQLiteStorage) -> tuple[int, int]:
    """Return the size in the row of the record, and the size of its fields."""
    reader = apsw.Connection(storage.path, flags=apsw.SQLITE_OPEN_READONLY)
    noted = reader.execute("SELECT bytes FROM record").get
    found = reader.execute("SELECT sum(octet_length(name) + octet_length(value)) FROM field").get
    reader.close()
    return noted, found


async def test_a_merge_beside_a_holder_is_kept(two: tuple[SQLiteStorage, SQLiteStorage]) -> None:
    one, other = two
    async with Slot(one, BOT, KEY) as slot:
        slot.data["a"] = 1
        await slot.commit(keep=True)
        assert await other.update_data(BOT, KEY, {"b": "longer than before"}) == {"a": 1, "b": "longer than before"}
        slot.data["a"] = 2
        await slot.commit(keep=True)
        assert await other.update_data(BOT, KEY, {"b": 3}) == {"a": 2, "b": 3}
        slot.data["a"] = 4
        await slot.commit()
    assert await one.update_data(BOT, KEY, {}) == {"a": 4, "b": 3}
    noted, found = stored_size(one)
    assert noted == found


async def test_a_holder_whose_lease_another_worker_has_taken_changes_nothing(
    two: tuple[SQLiteStorage, SQLiteStorage], clock: Clock
) -> None:
    one, other = two
    await one.set_data(BOT, KEY, {"a": 1})
    async with Slot(one, BOT, KEY, lease=10) as slot:
        slot.data["a"] = 3
        clock.advance(11)
        async with Slot(other, BOT, KEY, lease=10) as successor:
            # The row has not changed since the first holder read it; only the lease has.
            with pytest.raises(LeaseLost):
                await slot.commit()
            successor.data["a"] = 4
            await successor.commit()
    assert await one.get_data(BOT, KEY) == {"a": 4}


async def test_a_merge_sees_that_another_worker_replaced_or_removed_the_record(
    two: tuple[SQLiteStorage, SQLiteStorage],
) -> None:
    one, other = two
    await one.update_data(BOT, KEY, {"a": 1})
    await other.set_data(BOT, KEY, {"b": 2})
    assert await one.update_data(BOT, KEY, {"c": 3}) == {"b": 2, "c": 3}
    await other.clear(BOT, KEY)
    assert await one.update_data(BOT, KEY, {"d": 4}) == {"d": 4}
    for replacer in two:
        async with Slot(one, BOT, KEY) as slot:
            slot.data["d"] = 5
            await replacer.set_data(BOT, KEY, {"e": 6})
            with pytest.raises(RecordReplaced):
                await slot.commit()
        assert await one.get_data(BOT, KEY) == {"e": 6}


async def test_a_merge_into_an_expired_record_starts_a_new_one(
    two: tuple[SQLiteStorage, SQLiteStorage], clock: Clock
) -> None:
    one, _ = two
    await one.init(BOT, ttl=5)
    await one.update_data(BOT, KEY, {"a": 1})
    clock.advance(6)
    assert await one.update_data(BOT, KEY, {"b": 2}) == {"b": 2}


@pytest.mark.parametrize("times", [1, 2], ids=["then succeeds", "then fails"])
async def test_a_batch_that_was_rolled_back_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    async with SQLiteStorage(str(tmp_path / "bot.db")) as storage:
        await storage.update_data(BOT, KEY, {"a": 1})
        # After a write to another key, the next two share a batch.
        await storage.clear(BOT, "another key")
        do = SQLiteStorage._do
        failing = [StorageFull("no room")] * times

        def full(self: SQLiteStorage, operations: Any) -> Any:
            done = do(self, operations)
            if failing:
                raise failing.pop()
            return done

        monkeypatch.setattr(SQLiteStorage, "_do", full)
        merges = [storage.update_data(BOT, KEY, {"a": 2}), storage.update_data(BOT, KEY, {"b": "longer"})]
        outcomes = await asyncio.gather(*merges, return_exceptions=True)
        written: dict[str, Any] = {"a": 1}
        if times == 1:
            written = {"a": 2, "b": "longer"}
            assert outcomes == [{"a": 2}, written]
        else:
            assert [type(outcome) for outcome in outcomes] == [StorageFull, StorageFull]
        assert await storage.update_data(BOT, KEY, {"c": 3}) == {**written, "c": 3}
        noted, found = stored_size(storage)
        assert noted == found


async def test_a_merge_follows_a_version_that_was_copied_over_again(tmp_path: Path) -> None:
    """Copying writes the same write id again, over later versions."""
    source = MemoryStorage()
    await source.set_data(BOT, KEY, {"a": 1})
    path = str(tmp_path / "bot.db")
    async with SQLiteStorage(path) as bot, SQLiteStorage(path) as other:
        await copy_records(source, bot)
        async with Slot(bot, BOT, KEY) as slot:
            assert slot.data == {"a": 1}
        for number in range(2):
            await other.update_data(BOT, KEY, {"b": number})
        await copy_records(source, other)
        before = await version(bot)
        assert await bot.update_data(BOT, KEY, {"c": 3}) == {"a": 1, "c": 3}
        assert (await version(bot)).number == before.number + 1


async def version(storage: SQLiteStorage) -> Version:
    """Return the version of the record."""
    stored: Stored | None = await storage.perform(Get(storage.address(BOT, KEY)))
    assert stored is not None
    return stored.version


async def test_a_holder_can_go_on_after_a_write_that_was_too_large(tmp_path: Path) -> None:
    async with SQLiteStorage(str(tmp_path / "bot.db"), limits=Limits(record=1000)) as storage:
        async with Slot(storage, BOT, KEY) as slot:
            slot.data["a"] = "x" * 600
            await slot.commit(keep=True)
            slot.data["b"] = "x" * 600
            with pytest.raises(TooLarge):
                await slot.commit(keep=True)
            slot.data["b"] = "small"
            await slot.commit()
        assert await storage.get_data(BOT, KEY) == {"a": "x" * 600, "b": "small"}


@pytest.mark.parametrize("seed", range(5))
async def test_random_operations_of_two_workers_match_one_dict(
    two: tuple[SQLiteStorage, SQLiteStorage], clock: Clock, seed: int
) -> None:
    rng = random.Random(seed)
    expected: dict[int, dict[str, Any]] = {}
    for _ in range(400):
        storage, key, name = rng.choice(two), rng.randrange(3), rng.choice("abc")
        value: Any = rng.choice([rng.randrange(10), "x" * rng.randrange(30)])
        match rng.randrange(5):
            case 0:
                await storage.clear(BOT, key)
                expected.pop(key, None)
            case 1:
                await storage.set_data(BOT, key, {name: value})
                expected[key] = {name: value}
            case 2:
                expected[key] = {**expected.get(key, {}), name: value}
                assert await storage.update_data(BOT, key, {name: value}) == expected[key]
            case _:
                async with Slot(storage, BOT, key) as slot:
                    assert slot.data == expected.get(key, {})
                    slot.data[name] = value
                    await slot.commit(keep=True)
                    slot.data["turn"] = slot.data.get("turn", 0) + 1
                    if rng.random() < 0.3:
                        del slot.data[name]
                    await slot.commit()
                    expected[key] = slot.data
        clock.advance(0.001)
    for key in range(3):
        assert await two[0].get_data(BOT, key) == expected.get(key)
    reader = apsw.Connection(two[0].path, flags=apsw.SQLITE_OPEN_READONLY)
    wrong = reader.execute(
        "SELECT record.key FROM record JOIN field USING (namespace, key) WHERE alive = 1 "
        "GROUP BY record.namespace, record.key, bytes HAVING bytes <> sum(octet_length(name) + octet_length(value))"
    ).fetchall()
    reader.close()
    assert wrong == []
