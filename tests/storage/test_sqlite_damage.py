"""Reading a record with missing or changed rows raises CorruptRecord; it never returns None or a wrong value."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from stepwell import SQLiteStorage, State
from stepwell.errors import CorruptRecord, DamagedStorage
from stepwell.slot import Slot
from stepwell.storage import Claim, Claimed, Get, Release, Taken
from stepwell.testing import Clock

BOT, KEY, OTHER, NEIGHBOUR = "bot", 1, 2, 3
DATA = {"name": "Alice", "count": 41, "cart": [1, 2]}
WHERE = "namespace = 'bot' AND key = '1'"
SET = "UPDATE record SET"

#: Damage to the rows of a record. STRICT tables refuse other types, but damaged bytes can have any type.
DAMAGES = {
    "a field is gone": f"DELETE FROM field WHERE {WHERE} AND name = 'count'",
    "all fields are gone": f"DELETE FROM field WHERE {WHERE}",
    "a field has another key": f"UPDATE field SET key = '9' WHERE {WHERE} AND name = 'count'",
    "a field has another namespace": f"UPDATE field SET namespace = 'bou' WHERE {WHERE} AND name = 'count'",
    "a field has another name": f"UPDATE field SET name = 'coun' WHERE {WHERE} AND name = 'count'",
    "a field came from another record": "UPDATE field SET key = '1' WHERE key = '2' AND name = 'extra'",
    "the row is gone": f"DELETE FROM record WHERE {WHERE}",
    "the row has another key": f"{SET} key = '9' WHERE {WHERE}",
    "the row says that it is a tombstone": f"{SET} alive = 0 WHERE {WHERE}",
    "the row says that it has expired": f"{SET} expires_at = 1.0 WHERE {WHERE}",
    "the head is gone": f"{SET} head = NULL WHERE {WHERE}",
    "the tags differ": f"{SET} tags = '[\"user:3\"]' WHERE {WHERE}",
    "the deadline differs": f"{SET} deadline = 5.0 WHERE {WHERE}",
    "the number differs": f"{SET} number = number + 1 WHERE {WHERE}",
    "the number is huge": f"{SET} number = 9223372036854775807 WHERE {WHERE}",
    "the base differs": f"{SET} base = 'x' WHERE {WHERE}",
    "the names differ": f"{SET} names = names + 1 WHERE {WHERE}",
    "the names are gone": f"{SET} names = NULL WHERE {WHERE}",
    "the checksum differs": f"{SET} checksum = checksum + 1 WHERE {WHERE}",
    "the checksum is gone": f"{SET} checksum = NULL WHERE {WHERE}",
    "the row is that of another key": (
        f"{SET} (number, write, base, written_at, head, tags, bytes, names, part_names, checksum) = "
        "(SELECT number, write, base, written_at, head, tags, bytes, names, part_names, checksum "
        f"FROM record WHERE key = '2') WHERE {WHERE}"
    ),
}
#: Damage that changes the type of a column.
TYPES = {
    f"{column} is {value}": f"{SET} {column} = {value} WHERE {WHERE}"
    for column in ("number", "write", "base", "written_at", "alive", "head", "tags", "bytes", "expires_at", "checksum")
    for value in ("'text'", "x'00ff'", "NULL", "3")
    if (column, value) not in {("head", "'text'"), ("tags", "NULL"), ("expires_at", "NULL")}
}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "bot.db")


async def write(path: str) -> None:
    async with SQLiteStorage(path) as storage:
        await storage.set_state(BOT, OTHER, State("flow", "state", {**DATA, "extra": 1}))
        await storage.set_state(BOT, NEIGHBOUR, State("flow", "state", DATA))
        async with Slot(storage, BOT, KEY) as slot:
            slot.flow, slot.state, slot.data = "flow", "state", DATA
            await slot.commit(tags=("user:1",), parts={"a": 1, "b": 2})


def damage(path: str, sql: str) -> None:
    connection = apsw.Connection(path)
    connection.execute("PRAGMA writable_schema = 1")
    looser = "replace(replace(sql, ') STRICT, WITHOUT', ') WITHOUT'), ') STRICT', ')')"
    connection.execute(f"UPDATE sqlite_schema SET sql = replace({looser}, 'NOT NULL', '') WHERE type = 'table'")
    connection.execute("PRAGMA writable_schema = RESET")
    connection.execute(sql)
    assert connection.changes() >= 1
    connection.close()


@pytest.mark.parametrize("sql", [*DAMAGES.values(), *TYPES.values()], ids=[*DAMAGES, *TYPES])
async def test_a_damaged_row_is_an_error_for_every_reader_and_can_be_replaced_or_removed(
    path: str, sql: str, caplog: pytest.LogCaptureFixture
) -> None:
    await write(path)
    damage(path, sql)
    async with SQLiteStorage(path) as storage:
        for read in (storage.get_state, storage.get_data):
            with pytest.raises(CorruptRecord):
                await read(BOT, KEY)
        assert await storage.quarantined(BOT, KEY) is not None
        with pytest.raises(CorruptRecord):
            async with Slot(storage, BOT, KEY, wait=0.1):
                raise AssertionError("a handler ran on a damaged record")
        with pytest.raises(CorruptRecord):
            await storage.update_data(BOT, KEY, {"more": 1})
        with pytest.raises(CorruptRecord):
            await storage.get_data(BOT, KEY)
        await storage.sweep()
        with pytest.raises(CorruptRecord):
            await storage.get_state(BOT, KEY)
        async for entry in storage.scan(BOT):
            if entry.address == storage.address(BOT, KEY):
                with pytest.raises(CorruptRecord):
                    _ = entry.state
        assert await storage.get_data(BOT, NEIGHBOUR) == DATA
        await storage.set_state(BOT, KEY, State("flow", "state", {"new": 1}))
        assert await storage.get_state(BOT, KEY) == State("flow", "state", {"new": 1})
        assert await storage.update_data(BOT, KEY, {"more": 1}) == {"new": 1, "more": 1}
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("sql", [*DAMAGES.values(), *TYPES.values()], ids=[*DAMAGES, *TYPES])
async def test_a_damaged_row_can_be_cleared_and_forgotten(path: str, sql: str) -> None:
    for forget in (False, True):
        await write(path)
        damage(path, sql)
        async with SQLiteStorage(path) as storage:
            address = storage.address(BOT, KEY)
            await (storage.forget(address, tags=("user:1",)) if forget else storage.clear(BOT, KEY))
            assert await storage.get_state(BOT, KEY) is None
            async with Slot(storage, BOT, KEY) as slot:
                assert not slot.found
            assert await storage.perform(Get(address, parts=True)) is None
        Path(path).unlink()


@pytest.mark.parametrize(
    "sql",
    [
        f"DELETE FROM part WHERE {WHERE} AND name = 'a'",
        f"UPDATE part SET key = '9' WHERE {WHERE} AND name = 'a'",
        f"UPDATE part SET name = 'c' WHERE {WHERE} AND name = 'a'",
    ],
    ids=["gone", "another key", "another name"],
)
async def test_a_part_that_is_missing_is_an_error(path: str, sql: str) -> None:
    await write(path)
    async with SQLiteStorage(path) as storage, Slot(storage, BOT, KEY) as slot:
        assert await slot.parts() == {"a": 1, "b": 2}
        await slot.commit(parts={"b": 3, "c": 4}, dropped_parts=["a", "never there"], keep=True)
        assert await slot.parts() == {"b": 3, "c": 4}
        await slot.commit(parts={"a": 1, "b": 2}, dropped_parts=["c"], keep=True)
        assert await slot.parts() == {"a": 1, "b": 2}
    damage(path, sql)
    async with SQLiteStorage(path) as storage, Slot(storage, BOT, KEY) as slot:
        assert slot.data == DATA
        with pytest.raises(CorruptRecord):
            await slot.parts()


async def test_the_next_commit_of_a_holder_does_not_hide_a_lost_field(path: str) -> None:
    await write(path)
    async with SQLiteStorage(path) as storage:
        async with Slot(storage, BOT, KEY) as slot:
            damage(path, DAMAGES["a field is gone"])
            slot.data["name"] = "Bob"
            await slot.commit()
        with pytest.raises(CorruptRecord):
            await storage.get_data(BOT, KEY)


async def test_a_lease_of_another_type_has_ended(path: str) -> None:
    async with SQLiteStorage(path) as storage:
        address = storage.address(BOT, KEY)
        for until in ("'text'", "x'00'", "9e99"):
            assert isinstance(await storage.perform(Claim(address, "dead", 30.0)), Claimed)
            assert isinstance(await storage.perform(Claim(address, "other", 30.0)), Taken)
            damage(path, f"UPDATE lease SET until = {until}")
            assert isinstance(await storage.perform(Claim(address, "other", 30.0)), Claimed)
            await storage.perform(Release(address, "other"))


async def test_a_sweep_removes_sound_records_and_keeps_damaged_ones(path: str, clock: Clock) -> None:
    async with SQLiteStorage(path, clock=clock) as storage:
        await storage.init(BOT, ttl=10)
        for key in range(3):
            await storage.set_data(BOT, key, {"a": key})
    damage(path, f"UPDATE record SET written_at = 0 WHERE {WHERE}")
    clock.advance(11)
    async with SQLiteStorage(path, clock=clock) as storage:
        assert (await storage.sweep()).removed == 2
        with pytest.raises(CorruptRecord):
            await storage.get_data(BOT, KEY)


async def test_many_damaged_records_do_not_stop_the_sweep(path: str, clock: Clock) -> None:
    async with SQLiteStorage(path, clock=clock, sweep_every=None) as storage:
        await storage.init(BOT, ttl=10)
        for key in range(8):
            await storage.set_data(BOT, key, {"a": key})
        clock.advance(1)
        for key in range(8, 16):
            await storage.set_data(BOT, key, {"a": key})
    damage(path, "UPDATE record SET base = 'other' WHERE CAST(key AS INTEGER) < 8")
    clock.advance(20)
    async with SQLiteStorage(path, clock=clock, sweep_every=None) as storage:
        assert (await storage.sweep(3)).removed == 3
        assert (await storage.sweep(3)).removed == 3
        # It is removed later, before the place where the last sweep ended.
        late = await storage.perform(Claim(storage.address(BOT, 14), "A", 5.0))
        assert isinstance(late, Claimed)
        assert (await storage.sweep(1)).removed == 1
        await storage.perform(Release(storage.address(BOT, 14), "A"))
        assert (await storage.sweep(100)).removed == 1
        assert (await storage.sweep(100)).removed == 0
        for key in range(8):
            with pytest.raises(CorruptRecord):
                await storage.get_data("bot", key)


async def test_a_damaged_schema_gives_damaged_storage(tmp_path: Path) -> None:
    path = tmp_path / "bot.db"
    async with SQLiteStorage(str(path)) as storage:
        await storage.set_state(BOT, KEY, State("flow", "state", DATA))
    content = path.read_bytes()
    assert content.count(b"value     TEXT NOT NULL") > 1
    path.write_bytes(content.replace(b"value     TEXT NOT NULL", b"valuf     TEXT NOT NULL"))
    storage = SQLiteStorage(str(path), sweep_every=None)
    with pytest.raises(DamagedStorage, match="restore it from a backup"):
        await storage.get_state(BOT, KEY)
    await storage.close()


async def test_two_tables_at_one_page_give_damaged_storage(tmp_path: Path) -> None:
    path = tmp_path / "bot.db"
    async with SQLiteStorage(str(path)) as storage:
        await storage.set_state(BOT, KEY, State("flow", "state", DATA))
    other = apsw.Connection(str(path))
    other.execute("PRAGMA writable_schema = 1")
    root = other.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'memo'").get
    other.execute("UPDATE sqlite_schema SET rootpage = ? WHERE name = 'tag'", (root,))
    other.close()
    storage = SQLiteStorage(str(path), sweep_every=None)
    with pytest.raises(DamagedStorage, match="begin at the same page"):
        await storage.get_state(BOT, KEY)
