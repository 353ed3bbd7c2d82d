"""Runs that are submitted in a transaction of the user, together with the user's own rows, on PostgreSQL."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from stepwell import MemoryStorage, SealedStorage, Storage
from stepwell.errors import InvalidOption, RunExists, UnknownRun, Unsupported, UsageError
from stepwell.nodes import worker
from stepwell.storage.sealed import new_key
from tests.backends.postgres import Postgres
from tests.nodes import ordering
from tests.nodes.test_queue import logged
from tests.servers import postgres
from tests.until import until


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[Postgres]:
    backend = Postgres(tmp_path)
    yield backend
    await backend.close()


@pytest.fixture
async def storage(backend: Postgres) -> Storage:
    storage = backend.storage()
    await storage.open()
    return storage


@pytest.fixture
async def connection() -> AsyncIterator[Any]:
    connection = await asyncpg.connect(postgres.shared().url())
    await connection.execute("create table ordered (number int primary key)")
    yield connection
    if connection.is_in_transaction():
        await connection.execute("rollback")
    await connection.execute("drop table ordered")
    await connection.close()


async def numbers(connection: Any) -> list[int]:
    return [row[0] for row in await connection.fetch("select number from ordered order by number")]


async def test_an_order_and_its_run_are_committed_together(storage: Storage, connection: Any) -> None:
    flow, _ = logged(storage)
    async with worker([flow]):
        async with connection.transaction():
            await connection.execute("insert into ordered values (1)")
            handle = await flow.submit({"name": "a"}, flow_id="r", connection=connection)
            assert handle.created
            with pytest.raises(UnknownRun):
                await handle.status()
        assert (await handle.result(timeout=60))["done"] == "a"
    assert await numbers(connection) == [1]


async def test_a_rollback_takes_back_the_order_and_its_run(storage: Storage, connection: Any) -> None:
    flow, seen = logged(storage)
    with pytest.raises(ZeroDivisionError):
        async with connection.transaction():
            await connection.execute("insert into ordered values (1)")
            await flow.submit({"name": "a"}, flow_id="r", connection=connection)
            raise ZeroDivisionError
    assert await numbers(connection) == []
    with pytest.raises(UnknownRun):
        await flow.status("r")
    async with worker([flow]):
        await (await flow.submit({"name": "b"}, flow_id="r")).result(timeout=60)
    assert seen.started == ["b"]


async def test_connections_of_a_pool_and_savepoints_and_strict_isolation_work_too(
    storage: Storage, connection: Any
) -> None:
    flow, seen = logged(storage)
    async with asyncpg.create_pool(postgres.shared().url(), min_size=1, max_size=1) as pool, pool.acquire() as pooled:
        async with pooled.transaction(isolation="serializable"):
            kept = await flow.submit({"name": "kept"}, flow_id="kept", connection=pooled)
            with pytest.raises(ZeroDivisionError):
                async with pooled.transaction():
                    await flow.submit({"name": "dropped"}, flow_id="dropped", connection=pooled)
                    raise ZeroDivisionError
    with pytest.raises(UnknownRun):
        await flow.status("dropped")
    async with worker([flow]):
        await kept.result(timeout=60)
    assert seen.started == ["kept"]


async def test_without_notices_a_run_of_a_transaction_is_found_by_polling(backend: Postgres, connection: Any) -> None:
    flow, _ = logged(backend.storage(notices=False))
    async with worker([flow]):
        async with connection.transaction():
            handle = await flow.submit({"name": "a"}, connection=connection)
        assert (await handle.result(timeout=60))["done"] == "a"


async def test_a_process_that_is_killed_leaves_no_order_without_a_run_and_no_run_without_an_order(
    backend: Postgres, connection: Any
) -> None:
    url = backend.place()
    flow = ordering.orders(url)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.nodes.ordering", url, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    # It is killed at any point of a later transaction.
    for _ in range(random.randint(5, 40)):
        await process.stdout.readline()
    process.kill()
    await process.wait()
    clients = "select count(*) from pg_stat_activity where state like '%in transaction%' and pid <> pg_backend_pid()"
    await until(lambda: connection.fetchval(clients), lambda count: count == 0)
    ordered = await numbers(connection)
    runs = [run.flow_id async for run in flow.runs()]
    assert sorted(runs) == sorted(f"order-{number}" for number in ordered)
    assert ordered
    assert flow.storage is not None
    await flow.storage.close()


async def test_an_id_is_submitted_once_in_transactions_too(storage: Storage, connection: Any) -> None:
    flow, _ = logged(storage)
    await flow.submit({"name": "a"}, flow_id="r")
    async with connection.transaction():
        assert not (await flow.submit({"name": "a"}, flow_id="r", connection=connection)).created
        with pytest.raises(RunExists, match="other data"):
            await flow.submit({"name": "b"}, flow_id="r", connection=connection)
        assert (await flow.submit({"name": "c"}, flow_id="s", connection=connection)).created
        assert not (await flow.submit({"name": "c"}, flow_id="s", connection=connection)).created
        await connection.execute("insert into ordered values (1)")
        # The run that exists is not locked by this transaction.
        async with worker([flow]):
            final = await (await flow.submit({"name": "a"}, flow_id="r")).result(timeout=60)
    assert (final["done"], await numbers(connection)) == ("a", [1])


async def test_partitions_delays_and_timeouts_work_in_transactions(storage: Storage, connection: Any) -> None:
    flow, seen = logged(storage)
    async with worker([flow]):
        async with connection.transaction():
            options: dict[str, Any] = {"partition": "p", "connection": connection, "timeout": 3600, "tags": {"a": 1}}
            handles = [await flow.submit({"name": name}, **options) for name in "ab"]
            late = await flow.submit({"name": "c"}, after=0.1, connection=connection)
        for handle in (*handles, late):
            await handle.result(timeout=60)
    assert [name for name in seen.started if name != "c"] == ["a", "b"]


async def test_the_settings_of_the_connection_stay_as_they_are(storage: Storage, connection: Any) -> None:
    flow, _ = logged(storage)
    shown = "select name, setting from pg_settings where name like 'enable_%' or name in ('lock_timeout', 'jit')"
    async with connection.transaction():
        before = await connection.fetch(shown)
        await flow.submit({"name": "a"}, connection=connection)
        assert await connection.fetch(shown) == before


async def test_an_encrypted_run_is_written_in_a_transaction(storage: Storage, connection: Any) -> None:
    flow, _ = logged(SealedStorage(storage, keys=[new_key()]))
    async with worker([flow]):
        async with connection.transaction():
            handle = await flow.submit({"name": "secret"}, connection=connection)
        assert (await handle.result(timeout=60))["done"] == "secret"


async def test_a_connection_that_cannot_be_used_is_refused_with_the_reason(
    storage: Storage, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, _ = logged(storage)
    with pytest.raises(UsageError, match="no open transaction, so nothing was written"):
        await flow.submit({"name": "a"}, connection=connection)
    with pytest.raises(InvalidOption, match="connection= is a str: give a connection of asyncpg"):
        await flow.submit({"name": "a"}, connection="postgresql://")
    with pytest.raises(InvalidOption, match="debounce= exclude each other"):
        await flow.submit({"name": "a"}, debounce=1, connection=connection)
    with pytest.raises(InvalidOption, match="on_exists='restart' exclude each other"):
        await flow.submit({"name": "a"}, on_exists="restart", connection=connection)
    memory, _ = logged(MemoryStorage())
    with pytest.raises(Unsupported, match="transaction of the caller"):
        await memory.submit({"name": "a"}, connection=connection)
    # As in a database without the schema.
    monkeypatch.setattr(storage, "_run_batch_sql", "select * from nowhere.run_batch($1, $2, $3, $4, $5, $6)")
    async with connection.transaction():
        with pytest.raises(InvalidOption, match="must be the database of the storage"):
            await flow.submit({"name": "a"}, connection=connection)
        await connection.execute("insert into ordered values (1)")
    assert await numbers(connection) == [1]
