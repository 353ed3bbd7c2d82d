"""Runs that are submitted in a transaction of the user, together with the user's own rows, in an SQLite file."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from stepwell import SealedStorage, SQLiteStorage
from stepwell.errors import InvalidOption, RunExists, StorageUnavailable, UnknownRun, UsageError
from stepwell.nodes import worker
from stepwell.storage.sealed import new_key
from tests.nodes import ordering
from tests.nodes.test_queue import logged


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[SQLiteStorage]:
    async with SQLiteStorage(str(tmp_path / "bot.db")) as storage:
        yield storage


@pytest.fixture
def connection(storage: SQLiteStorage) -> apsw.Connection:
    connection = apsw.Connection(storage.path)
    connection.execute("create table ordered (number integer primary key)")
    return connection


def numbers(connection: apsw.Connection) -> list[int]:
    return [row[0] for row in connection.execute("select number from ordered order by number")]


async def test_an_order_and_its_run_are_committed_together(storage: SQLiteStorage, connection: apsw.Connection) -> None:
    flow, _ = logged(storage)
    async with worker([flow]):
        with connection:
            connection.execute("insert into ordered values (1)")
            handle = await flow.submit({"name": "a"}, flow_id="r", connection=connection)
            assert handle.created
            with pytest.raises(UnknownRun):
                await handle.status()
        assert (await handle.result(timeout=60))["done"] == "a"
    assert numbers(connection) == [1]


async def test_a_rollback_takes_back_the_order_and_its_run(storage: SQLiteStorage, connection: apsw.Connection) -> None:
    flow, seen = logged(storage)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("insert into ordered values (1)")
    await flow.submit({"name": "a"}, flow_id="r", connection=connection)
    connection.execute("ROLLBACK")
    assert numbers(connection) == []
    async with worker([flow]):
        await (await flow.submit({"name": "b"}, flow_id="r")).result(timeout=60)
    assert seen.started == ["b"]


async def test_a_refused_run_leaves_the_transaction_as_it_was(
    storage: SQLiteStorage, connection: apsw.Connection
) -> None:
    flow, _ = logged(SealedStorage(storage, keys=[new_key()]))
    await flow.submit({"name": "a"}, flow_id="r")
    with connection:
        assert not (await flow.submit({"name": "a"}, flow_id="r", connection=connection)).created
        with pytest.raises(RunExists, match="other data"):
            await flow.submit({"name": "b"}, flow_id="r", connection=connection)
        handle = await flow.submit({"name": "c"}, flow_id="s", connection=connection)
        connection.execute("insert into ordered values (1)")
    async with worker([flow]):
        assert (await handle.result(timeout=60))["done"] == "c"
    assert numbers(connection) == [1]


async def test_a_process_that_is_killed_leaves_no_order_without_a_run_and_no_run_without_an_order(
    storage: SQLiteStorage, connection: apsw.Connection
) -> None:
    url = f"sqlite:///{storage.path}"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.nodes.ordering", url, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    # It is killed at any point of a later transaction.
    for _ in range(random.randint(5, 40)):
        await process.stdout.readline()
    process.kill()
    await process.wait()
    flow = ordering.orders(url)
    runs = [run.flow_id async for run in flow.runs()]
    assert sorted(runs) == sorted(f"order-{number}" for number in numbers(connection))
    assert runs
    assert flow.storage is not None
    await flow.storage.close()


async def test_a_connection_that_cannot_be_used_is_refused_with_the_reason(
    storage: SQLiteStorage, connection: apsw.Connection, tmp_path: Path
) -> None:
    flow, _ = logged(storage)
    with pytest.raises(UsageError, match="no open transaction, so nothing was written"):
        await flow.submit({"name": "a"}, connection=connection)
    other = apsw.Connection(str(tmp_path / "other.db"))
    with other, pytest.raises(InvalidOption, match=r"another file than the storage of the flow; open .*bot.db"):
        await flow.submit({"name": "a"}, connection=other)
    with pytest.raises(InvalidOption, match=r"connection= is a sqlite3.Connection: give an apsw.Connection"):
        await flow.submit({"name": "a"}, connection=sqlite3.connect(":memory:"))
    writer = apsw.Connection(storage.path)
    writer.execute("BEGIN IMMEDIATE")
    connection.execute("BEGIN")
    with pytest.raises(StorageUnavailable, match="begin yours with BEGIN IMMEDIATE"):
        await flow.submit({"name": "a"}, connection=connection)
    writer.execute("ROLLBACK")
    # The transaction goes on.
    await flow.submit({"name": "a"}, flow_id="r", connection=connection)
    connection.execute("COMMIT")
    assert (await flow.status("r")).status == "queued"
