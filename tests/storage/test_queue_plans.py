"""Reading a queue, the names of queues and the deadlines of a flow reads a few rows only, among 100,000."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

from stepwell import PostgresStorage, SQLiteStorage, Storage
from stepwell.record import RUNS
from tests.insides import file_of
from tests.servers.postgres import shared

RECORDS = 100_000
#: The most rows that a read of five results may touch.
FEW = 30
#: The most pages of an SQLite file that six such reads may touch: a tree has four or five levels. The file has 15,000.
FEW_PAGES = 200


async def read_all(storage: Storage) -> None:
    """Read five results of each kind, and check them."""
    assert len(await storage.queued(RUNS, "f", limit=5)) == 5
    assert len(await storage.queued(RUNS, "f/77", limit=5)) == 5
    assert await storage.queues(RUNS, prefix="f/", limit=5) == ["f/102", "f/103", "f/104", "f/107", "f/108"]
    assert await storage.queues(RUNS, prefix="f/", after="f/98", limit=5) == ["f/99"]
    assert len(await storage.due(RUNS, flow="f", limit=5)) == 5
    assert await storage.due(RUNS, flow="none", limit=5) == []


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)


async def test_postgresql_reads_a_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"plans_{uuid.uuid4().hex}"
    plans: list[dict[str, Any]] = []
    original = PostgresStorage._fetch

    async def explained(self: PostgresStorage, sql: str, *args: Any) -> Any:
        (row,) = await original(self, f"explain (analyze, format json) {sql}", *args)
        plans.append(json.loads(row[0])[0]["Plan"])
        return await original(self, sql, *args)

    monkeypatch.setattr(PostgresStorage, "_fetch", explained)
    connection = await asyncpg.connect(shared().url())
    try:
        async with PostgresStorage(shared().url(), schema=name, sweep_every=None) as storage:
            # A fifth has no queue, a fifth is in one queue, and the others are in 120 queues. Half have a deadline.
            await connection.execute(
                f"insert into {name}.records (namespace, key, alive, flow, queue, deadline, removable_at) "
                "select $1, 'k' || n, true, case n % 3 when 0 then 'f' when 1 then 'g' end, "
                "case n % 5 when 0 then null when 1 then 'f' else 'f/' || n % 200 end "
                "|| chr(10) || '7fffffff' || lpad(to_hex(n), 14, '0'), "
                "case when n % 2 = 0 then n end, null from generate_series(1, $2) n",
                str(RUNS),
                RECORDS,
            )
            await read_all(storage)
            await connection.execute(f"analyze {name}.records")
            await read_all(storage)
    finally:
        await connection.execute(f"drop schema {name} cascade")
        await connection.close()
    assert len(plans) == 12
    for plan in plans:
        scans = [node for node in nodes(plan) if node.get("Relation Name") == "records"]
        indexes = {scan.get("Index Name") for scan in scans}
        assert indexes in ({"records_by_queue"}, {"records_by_flow_deadline"}), plan
        touched = [
            (scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0)) * scan["Actual Loops"] for scan in scans
        ]
        assert sum(touched) <= FEW, plan


async def test_sqlite_reads_a_few_pages(tmp_path: Path) -> None:
    path = str(tmp_path / "bot.db")
    async with SQLiteStorage(path, sweep_every=None):
        pass
    connection = apsw.Connection(path)
    connection.execute(
        "WITH RECURSIVE series (value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM series WHERE value < ?2) "
        "INSERT INTO record (namespace, key, number, write, base, written_at, alive, bytes, flow, queue, "
        "deadline, names, part_names, checksum) "
        "SELECT ?1, 'k' || value, 1, 'w', '', 0.0, 1, 0, CASE value % 3 WHEN 0 THEN 'f' WHEN 1 THEN 'g' END, "
        "CASE value % 5 WHEN 0 THEN NULL WHEN 1 THEN 'f' ELSE 'f/' || (value % 200) END "
        "|| char(10) || '7fffffff' || format('%014x', value), "
        "CASE value % 2 WHEN 0 THEN value END, 0, 0, 0 FROM series",
        (str(RUNS), RECORDS),
    )
    connection.close()
    async with SQLiteStorage(path, sweep_every=None) as storage:
        await read_all(storage)
        before = pages_read(storage)
        await read_all(storage)
        assert pages_read(storage) - before <= FEW_PAGES


def pages_read(storage: SQLiteStorage) -> int:
    writer = file_of(storage).writer
    return sum(writer.status(each)[0] for each in (apsw.SQLITE_DBSTATUS_CACHE_HIT, apsw.SQLITE_DBSTATUS_CACHE_MISS))
