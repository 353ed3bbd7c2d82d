"""A write that trusts what its connection saw last is right, whoever wrote in between."""

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
from stepwell.storage.sqlite import cache
from stepwell.testing import Clock

BOT, KEY = "bot", 1


@pytest.fixture
async def two(tmp_path: Path, clock: Clock) -> AsyncIterator[tuple[SQLiteStorage, SQLiteStorage]]:
    """Two workers on one file; each has a memory of its own."""
    path = str(tmp_path / "bot.db")
    async with SQLiteStorage(path, clock=clock) as one, SQLiteStorage(path, clock=clock) as other:
        yield one, other


def stored_size(storage: SQLiteStorage) -> tuple[int, int]:
    """The size that the record is said to have, and the one that it has."""
    reader = apsw.Connection(storage.path, flags=apsw.SQLITE_OPEN_READONLY)
    said = reader.execute("SELECT bytes FROM record").get
    found = reader.execute("SELECT sum(octet_length(name) + octet_length(value)) FROM field").get
    reader.close()
    return said, found


def statements(storage: SQLiteStorage) -> list[str]:
    """What the writer runs from now on."""
    run: list[str] = []
    storage._file.writer.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: run.append(event["sql"]))
    return run


async def test_a_holders_commits_read_nothing(tmp_path: Path) -> None:
    async with SQLiteStorage(str(tmp_path / "bot.db")) as storage:
        async with Slot(storage, BOT, KEY) as slot:
            slot.data.update(count=0, name="Alice")
            await slot.commit(keep=True)
            run = statements(storage)
            for count in range(1, 4):
                slot.data["count"] = count
                await slot.commit(keep=True)
        kinds = [sql.split()[0] for sql in run if sql.split()[0] in ("SELECT", "UPDATE", "INSERT", "COMMIT")]
        assert kinds[:4] == ["UPDATE", "UPDATE", "INSERT", "COMMIT"]
        assert "SELECT" not in kinds[:12]
        assert await storage.get_data(BOT, KEY) == {"count": 3, "name": "Alice"}


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
    said, found = stored_size(one)
    assert said == found


async def test_whoever_lost_the_lease_changes_nothing(two: tuple[SQLiteStorage, SQLiteStorage], clock: Clock) -> None:
    one, other = two
    await one.set_data(BOT, KEY, {"a": 1})
    async with Slot(one, BOT, KEY, lease=10) as slot:
        slot.data["a"] = 2
        clock.advance(11)
        with pytest.raises(LeaseLost):
            await slot.commit()
    async with Slot(one, BOT, KEY, lease=10) as slot:
        slot.data["a"] = 3
        clock.advance(11)
        async with Slot(other, BOT, KEY, lease=10) as successor:
            # The row is still the one that the first holder knows; only the lease is another's.
            with pytest.raises(LeaseLost):
                await slot.commit()
            successor.data["a"] = 4
            await successor.commit()
    assert await one.get_data(BOT, KEY) == {"a": 4}


async def test_what_was_replaced_or_removed_is_not_known(two: tuple[SQLiteStorage, SQLiteStorage]) -> None:
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


async def test_an_expired_record_is_not_known(two: tuple[SQLiteStorage, SQLiteStorage], clock: Clock) -> None:
    one, _ = two
    await one.init(BOT, ttl=5)
    await one.update_data(BOT, KEY, {"a": 1})
    clock.advance(6)
    assert await one.update_data(BOT, KEY, {"b": 2}) == {"b": 2}


@pytest.mark.parametrize("times", [1, 2], ids=["and done again", "and given up"])
async def test_a_write_that_was_rolled_back_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    async with SQLiteStorage(str(tmp_path / "bot.db")) as storage:
        await storage.update_data(BOT, KEY, {"a": 1})
        # Whoever did not write last is gathered: the two that follow are one batch.
        await storage.clear(BOT, "somebody else")
        do = SQLiteStorage._do
        failing = [StorageFull("no room")] * times

        def full(self: SQLiteStorage, operations: Any, now: float) -> Any:
            done = do(self, operations, now)
            assert len(self._rows.known) == 1, "what is rolled back now has been remembered"
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
        said, found = stored_size(storage)
        assert said == found


async def test_a_version_that_was_copied_over_again_is_not_known(tmp_path: Path) -> None:
    """Copying writes the same id a second time, over what came after the first."""
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
    """Of the record."""
    stored: Stored | None = await storage.perform(Get(storage.address(BOT, KEY)))
    assert stored is not None
    return stored.version


async def test_too_large_is_refused_and_the_holder_goes_on(tmp_path: Path) -> None:
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


async def test_only_so_much_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_RECORDS", 10)
    monkeypatch.setattr(cache, "MOST_TEXT", 2000)
    async with SQLiteStorage(str(tmp_path / "bot.db")) as storage:
        for key in range(30):
            await storage.update_data(BOT, key, {"a": key})
        known = storage._rows.known
        assert len(known) == 10
        for key in range(30):
            await storage.update_data(BOT, key, {"b": "x" * 900})
        assert len(known) == 2
        held = known._records.values()
        assert known.weight == sum(len(name) + len(text) for each in held for name, text in each.fields.items())
        for key in range(30):
            known.take(storage.address(BOT, key))
        assert known.weight == 0
        assert [await storage.get_data(BOT, key) for key in range(30)] == [
            {"a": key, "b": "x" * 900} for key in range(30)
        ]


@pytest.mark.parametrize("seed", range(5))
async def test_any_two_workers_agree_with_one_dict(
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
