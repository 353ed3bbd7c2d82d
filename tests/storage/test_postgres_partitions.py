"""Tests of PostgreSQL tables with partitions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from stepwell import State, Storage, open_storage
from stepwell.codec.json import replaced
from stepwell.errors import InvalidOption
from stepwell.operate.checks.postgres import check
from stepwell.record import Change, Queue
from stepwell.slot import Slot
from stepwell.storage import Apply, Query
from stepwell.storage.postgres import PostgresStorage
from stepwell.testing import Clock, JournaledStorageContract
from tests.reliability.dose import LARGE
from tests.servers.postgres import PostgresServer, shared
from tests.storage.test_postgres import _explained, _nodes, schema

COUNT = 4
TABLES = ("records", "memos", "parts", "tagged")


@pytest.fixture
async def admin() -> AsyncIterator[Any]:
    connection = await asyncpg.connect(shared().url())
    yield connection
    await connection.close()


@pytest.mark.skipif(not LARGE, reason="with the large dose only: the statements are those of other schemas")
class TestPartitionedStorage(JournaledStorageContract):
    def open_storage(self, clock: Clock) -> Storage:
        self.url = f"{shared().url()}?schema={schema()}&partitions={COUNT}"
        return open_storage(self.url, clock=clock)

    def reopen(self, storage: Storage) -> Storage:
        return open_storage(self.url, clock=storage.clock)


async def step(storage: Storage, n: int) -> None:
    async with Slot(storage, "bot", n) as slot:
        slot.flow, slot.state = "form", f"s{n % 3}"
        slot.data["steps"] = slot.data.get("steps", 0) + 1
        await slot.commit(memo=[n])


async def seen(storage: PostgresStorage) -> dict[str, Any]:
    """Return the answers of all ways to find records."""
    found: dict[str, Any] = {}
    queries = (Query("bot"), Query("bot", "form", "s1"), Query("bot", "form"), Query("bot", state="s1"))
    for number, query in enumerate((*queries, Query("bot", tag="user:1"))):
        first = await storage.page(query, None, 7)
        found[f"page {number}"] = [(address, record.fields) for address, record in first.records]
        if first.after is not None:
            found[f"page {number} b"] = [address for address, _ in (await storage.page(query, first.after, 7)).records]
    found["due"] = await storage.due("bot", before=1e12, flow="form")
    found["queued"] = await storage.queued("bot", "q"), await storage.queues("bot")
    found["traces"] = await storage.traces("bot", "chat:1")
    found["namespaces"] = await storage.namespaces()
    found["counts"] = sorted(await storage.counts(), key=str)
    return found


async def fill(storage: PostgresStorage) -> None:
    for _ in range(3):
        await asyncio.gather(*(step(storage, n) for n in range(30)))
    for n in range(30):
        change = Change(write="w", tags=(f"user:{n % 3}", f"chat:{n % 3}"), deadline=100.0 + n, queue=Queue("q", n % 2))
        await storage.perform(Apply(storage.address("bot", n), replaced(change, parts={"p": "x", "q": "y" * n})))


async def test_a_schema_is_divided_when_it_is_created_and_later_by_a_function(admin: Any) -> None:
    with pytest.raises(InvalidOption, match="partitions must be 0 or from 2 to 1024, not 1"):
        PostgresStorage("postgresql://here", partitions=1)
    with pytest.raises(InvalidOption, match="partitions in a PostgreSQL URL must be a whole number"):
        open_storage("postgresql://here?partitions=many")
    name = schema()
    async with PostgresStorage(shared().url(), schema=name, sweep_every=None) as storage:
        await fill(storage)
        await admin.execute(
            f"create role reader_{name}; grant select on {name}.records, {name}.states to reader_{name}"
        )
        await admin.execute(f"create index people_{name} on {name}.records (({name}.value(data ->> 'steps')))")
        before = await seen(storage)
        for count in (COUNT, 8, 0, COUNT):
            # The open storage goes on.
            await admin.execute(f"select {name}.partition({count})")
            assert await seen(storage) == before
            assert await partitions(admin, name) == dict.fromkeys(TABLES, count)
            assert (await storage.settings())["partitions"] == count
            indexes = await admin.fetch(f"select indexname from pg_indexes where schemaname = '{name}'")
            assert {row[0] for row in indexes} >= {"records_pkey", "records_by_state", f"people_{name}", "tagged_pkey"}
            for table in ("records", "states"):
                can_read = f"select has_table_privilege('reader_{name}', '{name}.{table}', 'select')"
                assert await admin.fetchval(can_read)
            filled = f"relname ~ '^records' and relnamespace = '{name}'::regnamespace"
            options = await admin.fetch(f"select reloptions from pg_class where reloptions is not null and {filled}")
            assert ["fillfactor=90" in row[0] for row in options] == [True] * max(count, 1)
            await asyncio.gather(*(step(storage, n) for n in range(30)))
            before = await seen(storage)
        await storage.forget(storage.address("bot", 1))
        assert await storage.traces("bot", "user:1") != before["traces"]
    new = schema()
    async with PostgresStorage(shared().url(), schema=new, partitions=COUNT, sweep_every=None) as storage:
        await fill(storage)
        assert await partitions(admin, new) == dict.fromkeys(TABLES, COUNT)
        assert await storage.update_data("bot", 1, {"a": "x" * 3000}) == {"steps": 3, "a": "x" * 3000}
    async with PostgresStorage(shared().url(), schema=new, partitions=16) as storage:
        (finding,) = [each for each in check(await storage.settings(), 0.0) if each.check == "partitions"]
        assert finding.level == "warn" and f"select {new}.partition(16)" in finding.advice
        await storage.set_state("bot", 1, State("form", "s1", {}))


async def partitions(admin: Any, name: str) -> dict[str, int]:
    return {
        table: await admin.fetchval(f"select count(*) from pg_inherits where inhparent = '{name}.{table}'::regclass")
        for table in TABLES
    }


async def test_an_update_touches_one_partition_and_lists_merge_the_indexes() -> None:
    explain = {"log_min_duration": "0", "log_nested_statements": "on", "log_format": "json", "log_analyze": "on"}
    server = PostgresServer(
        settings={"session_preload_libraries": "auto_explain"}
        | {f"auto_explain.{name}": value for name, value in explain.items()}
    ).start()
    try:
        async with PostgresStorage(server.url(), partitions=COUNT, sweep_every=None) as storage:
            await fill(storage)
            offset = len(server.log.read_text())
            await step(storage, 1)
            await storage.update_data("bot", 1, {"a": 1})
            updates = _explained(server.log.read_text()[offset:])
            offset = len(server.log.read_text())
            await seen(storage)
            lists = _explained(server.log.read_text()[offset:])
    finally:
        server.stop()
    assert len(updates) >= 4
    for each in updates:
        touched = {
            node["Relation Name"]
            for node in _nodes(each["Plan"])
            if node.get("Actual Loops")
            and node.get("Relation Name", "").startswith("records_")
            # The list of an update's target tables is not a scan.
            and "Scan" in node["Node Type"]
        }
        assert len(touched) <= 1, each["Query Text"]
    nodes = [node for each in (*updates, *lists) for node in _nodes(each["Plan"])]
    ours = [node for node in nodes if node.get("Relation Name", "").startswith(TABLES)]
    assert ours
    assert not [node for node in ours if node["Node Type"] == "Seq Scan"]
    assert [node for node in nodes if node["Node Type"] == "Merge Append"]
    # The list of namespaces reads the first entry of each index.
    assert not [node for node in ours if "Index Name" in node and "Index Cond" not in node and node["Actual Rows"] > 1]
