"""Counts of records, and lists by flow or state alone, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import gc
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

from stepwell import PostgresStorage, SQLiteStorage, State, Storage
from stepwell.errors import StorageClosed
from stepwell.storage import Query
from stepwell.storage.postgres.places import TableSize
from stepwell.storage.sqlite.schema import QUERIES
from stepwell.testing.contract.suite import apply
from tests.constants import Constants
from tests.insides import file_of
from tests.servers.postgres import shared

#: A query that does not end.
ENDLESS = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + ?1 FROM n) SELECT max(n), 1, 1, 1 FROM n"


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[SQLiteStorage]:
    async with SQLiteStorage(str(tmp_path / "bot.db")) as storage:
        yield storage


@pytest.fixture
async def postgres() -> AsyncIterator[PostgresStorage]:
    name = f"counts_{uuid.uuid4().hex}"
    async with PostgresStorage(shared().url(), schema=name) as storage:
        yield storage
    connection = await asyncpg.connect(shared().url())
    await connection.execute(f"drop schema {name} cascade")
    await connection.close()


@pytest.fixture(params=["sqlite", "postgres"])
def storage(request: pytest.FixtureRequest) -> Storage:
    storage: Storage = request.getfixturevalue(request.param)
    return storage


async def test_lists_by_flow_or_state_alone_merge_all_places_by_key(storage: Storage) -> None:
    places = [(flow, state) for flow in ("a", "b", None) for state in ("x", "y", None)]
    for number in range(90):
        await storage.set_state("bot", number, State(*places[number % 9]))
    await storage.clear("bot", 0)
    there = {number: places[number % 9] for number in range(1, 90)}
    for flow in ("a", None, "none"):
        found = [int(entry.key) async for entry in storage.scan("bot", flow=flow, page=4)]
        assert found == sorted((n for n, place in there.items() if place[0] == flow), key=str)
    for state in ("y", None, "none"):
        found = [int(entry.key) async for entry in storage.scan("bot", state=state, page=4)]
        assert found == sorted((n for n, place in there.items() if place[1] == state), key=str)


async def test_expired_records_do_not_end_a_merged_list(storage: Storage) -> None:
    for number in range(12):
        await apply(storage, number, head=("a", f"s{number % 2}"), expiry=0.001 if number < 6 else None)
    await asyncio.sleep(0.01)
    found = [entry.key async for entry in storage.scan("bot", flow="a", page=2)]
    assert sorted(found) == [6, 7, 8, 9, 10, 11]
    assert sorted(each.records for each in await storage.counts()) == [3, 3]


async def test_sqlite_lists_a_flow_with_very_many_states(sqlite: SQLiteStorage, constants: Constants) -> None:
    constants(listing_most_places=5)
    for number in range(20):
        await sqlite.set_state("bot", number, State("a" if number % 2 else "b", f"s{number}"))
    assert sorted([entry.key async for entry in sqlite.scan("bot", flow="a", page=3)]) == list(range(1, 20, 2))


async def test_sqlite_writes_while_it_counts_and_stops_counting_when_it_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(QUERIES, "oldest", ENDLESS)
    logged: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    storage = SQLiteStorage(str(tmp_path / "bot.db"))
    async with storage:
        cancelled = asyncio.create_task(storage.counts(oldest=True))
        counting = asyncio.create_task(storage.counts(oldest=True))
        await storage.set_state("bot", 1, State("a", "x"))
        assert [each.records for each in await storage.counts()] == [1]
        started = time.monotonic()
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert not counting.done()
    assert time.monotonic() - started < 5
    with pytest.raises(StorageClosed):
        await counting
    del cancelled, counting
    gc.collect()
    assert not logged
    # Its connection is closed: the last one removes the WAL.
    assert not (tmp_path / "bot.db-wal").exists()


async def test_sqlite_counts_damaged_names_too(tmp_path: Path) -> None:
    path = str(tmp_path / "bot.db")
    async with SQLiteStorage(path) as storage:
        for number in range(3):
            await storage.set_state("bot", number, State("a", "x"))
    connection = apsw.Connection(path)
    connection.execute("UPDATE record SET state = CAST(x'ff78' AS TEXT) WHERE key = '1'")
    connection.close()
    async with SQLiteStorage(path) as storage:
        assert sorted(each.records for each in await storage.counts()) == [1, 2]


async def test_postgresql_counts_a_part_if_all_records_would_take_too_long(
    postgres: PostgresStorage, monkeypatch: pytest.MonkeyPatch, constants: Constants
) -> None:
    for number in range(9):
        await postgres.set_state("bot", number, State("a", "x") if number < 5 else State(None, None))
    constants(places_most_counted=3)
    # The size of the table is not known before it is analyzed.
    parts = {each.flow: (each.records, each.more, each.oldest) for each in await postgres.counts()}
    assert parts == {"a": (3, True, None), None: (3, True, None)}
    exact = {each.flow: (each.records, each.more) for each in await postgres.counts(oldest=True)}
    assert exact == {"a": (5, False), None: (4, False)}
    await postgres._other.fetch(f"analyze {postgres.schema}.records")
    assert {each.flow: (each.records, each.more) for each in await postgres.counts()} == exact
    constants(places_most_lookups=3)
    assert TableSize(9, 1, 1, 0).is_quick
    monkeypatch.setattr(TableSize, "is_quick", True)
    # Rows without flow and state may be tombstones, so each of them is looked up.
    found = {each.flow: (each.records, each.more) for each in await postgres.counts()}
    assert found == {"a": (5, False), None: (3, True)}


@pytest.mark.parametrize(
    ("size", "is_quick"),
    [
        (TableSize(-1, 0, 0, 0), False),
        (TableSize(0, 0, 0, 0), True),
        (TableSize(40_000, 2_500, 0, 0), True),
        (TableSize(1_000_000, 62_500, 62_500, 1_000), True),
        (TableSize(1_000_000, 62_500, 62_500, 50_000), False),
        (TableSize(1_000_000, 62_500, 30_000, 0), False),
        (TableSize(3_000_000, 190_000, 190_000, 0), False),
    ],
)
def test_postgresql_counts_all_only_if_the_index_needs_few_lookups(size: TableSize, is_quick: bool) -> None:
    assert size.is_quick == is_quick


async def test_sqlite_reads_few_pages_for_a_list_by_flow_or_state(sqlite: SQLiteStorage) -> None:
    connection = apsw.Connection(sqlite.path)
    connection.execute(
        "WITH RECURSIVE series (value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM series WHERE value < 50000) "
        "INSERT INTO record "
        "(namespace, key, number, write, base, written_at, alive, bytes, flow, state, names, part_names, checksum) "
        "SELECT 'bot', 'k' || value, 1, 'w', '', 0.0, 1, 0, 'f' || (value % 3), 's' || (value % 4), 0, 0, 0 FROM series"
    )
    connection.close()
    for query in (Query("bot", "f1"), Query("bot", state="s1"), Query("bot", "f1", "s1")):
        await sqlite.page(query, None, 5)
        before = pages_read(sqlite)
        assert len((await sqlite.page(query, "k3", 5)).records) == 5
        assert pages_read(sqlite) - before < 400, query


def pages_read(storage: SQLiteStorage) -> int:
    writer = file_of(storage).writer
    return sum(writer.status(each)[0] for each in (apsw.SQLITE_DBSTATUS_CACHE_HIT, apsw.SQLITE_DBSTATUS_CACHE_MISS))
