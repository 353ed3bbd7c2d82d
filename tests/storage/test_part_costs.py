"""An update and a range read cost the same however many parts a record has: rows, steps and commands are counted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import asyncpg
import pytest

from stepwell import Limits, Log, Storage
from stepwell.record import Change
from stepwell.slot import Slot
from stepwell.storage import Apply, Get, Range
from tests.backends.postgres import Postgres
from tests.backends.redis import Redis
from tests.backends.sqlite import SQLite
from tests.insides import file_of
from tests.reliability.dose import dose
from tests.servers import postgres
from tests.servers.redis import RedisServer
from tests.until import until

PARTS = dose("PARTS", 5_000, 100_000)
REPEATED = 10
LIMITS = Limits(record=1 << 30, run=1 << 30)

Work: TypeAlias = Callable[[Storage], Awaitable[Any]]
#: Returns a storage, and a function that returns the costs of some work with it.
Cost: TypeAlias = Callable[[Work], Awaitable[dict[str, int]]]


@asynccontextmanager
async def on_sqlite(tmp_path: Path) -> AsyncIterator[Cost]:
    """Count the steps of SQLite's virtual machine."""
    backend = SQLite(tmp_path)
    storage = backend.storage(limits=LIMITS, sweep_every=None)

    async def cost(work: Work) -> dict[str, int]:
        await storage.open()
        steps = 0

        def step() -> bool:
            nonlocal steps
            steps += 1
            return False

        connections = (file_of(storage).writer, file_of(storage).reader)
        for connection in connections:
            connection.set_progress_handler(step, 1)
        try:
            await work(storage)
        finally:
            for connection in connections:
                connection.set_progress_handler(None)
        return {"steps": steps}

    yield cost
    await backend.close()


@asynccontextmanager
async def on_redis(tmp_path: Path) -> AsyncIterator[Cost]:
    """Count the commands of Redis, which scripts call."""
    server = RedisServer()
    backend = Redis(tmp_path)
    storage = backend.storage(server.url(), limits=LIMITS, sweep_every=None, notices=False)

    async def cost(work: Work) -> dict[str, int]:
        with server.client() as client:
            client.config_resetstat()
            await work(storage)
            stats = client.info("commandstats")
            output = client.info("stats")["total_net_output_bytes"]
        calls = {name.removeprefix("cmdstat_"): row["calls"] for name, row in stats.items()}
        # The connection of the test has its own commands.
        mine = (
            "config|resetstat",
            "info",
            "client|setinfo",
            "hello",
            "client|setname",
            "script|load",
            "ping",
            "select",
        )
        return {name: count for name, count in calls.items() if name not in mine} | {"kilobytes": output // 1024}

    yield cost
    await backend.close()
    server.stop()


@asynccontextmanager
async def on_postgres(tmp_path: Path) -> AsyncIterator[Cost]:
    """Count the rows that PostgreSQL reads. Its sessions report them when they end."""
    backend = Postgres(tmp_path)
    url = backend.place()
    admin = await asyncpg.connect(postgres.shared().url())
    schema = url.partition("schema=")[2].partition("&")[0]

    async def rows() -> dict[str, int]:
        sql = (
            "select relname, coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) from pg_stat_user_tables "
            "where schemaname = $1"
        )
        return {name: int(count) for name, count in await admin.fetch(sql, schema)}

    async def sessions() -> set[int]:
        found = await admin.fetch("select pid from pg_stat_activity where application_name = 'stepwell'")
        return {pid for (pid,) in found}

    async def cost(work: Work) -> dict[str, int]:
        before = await rows()
        # A pooler of another test may have sessions that stay.
        others = await sessions()
        async with backend.storage(url, limits=LIMITS, sweep_every=None, notices=False) as storage:
            await work(storage)
        # The server ends the sessions a moment after the client.
        await until(sessions, lambda found: not found - others)
        after = await rows()
        return {name: count - before.get(name, 0) for name, count in after.items() if name in ("parts", "records")}

    yield cost
    await admin.close()
    await backend.close()


@pytest.fixture(params=[on_sqlite, on_redis, on_postgres], ids=lambda fixture: fixture.__name__)
async def cost(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cost]:
    async with request.param(tmp_path) as cost:
        yield cost


def filled(key: int, count: int) -> Work:
    async def work(storage: Storage) -> None:
        address = storage.address("bot", key)
        text = storage.seal(address).seal("p", "a", "x" * 20)
        for first in range(0, count, 1000):
            parts = {f"{number:08}": text for number in range(first, min(first + 1000, count))}
            await storage.perform(Apply(address, Change(write=storage.ids(), parts=parts, limit=1 << 30)))
        async with Slot(storage, "bot", key) as slot:
            slot.data["count"] = 0
            await slot.commit()
        # Redis makes its index with the first read of a range.
        await storage.perform(Get(address, Range(limit=1)))

    return work


def updated(key: int) -> Work:
    async def work(storage: Storage) -> None:
        for _ in range(REPEATED):
            async with Slot(storage, "bot", key) as slot:
                slot.data["count"] += 1
                await slot.commit()
            await storage.update_data("bot", key, {"other": 1})

    return work


def appended(key: int) -> Work:
    async def work(storage: Storage) -> None:
        address = storage.address("bot", key)
        for number in range(REPEATED):
            parts = {f"z{number:04}": "x" * 20}
            await storage.perform(Apply(address, Change(write=storage.ids(), parts=parts, limit=1 << 30)))

    return work


def read(key: int, wanted: Range | tuple[str, ...]) -> Work:
    async def work(storage: Storage) -> None:
        for _ in range(REPEATED):
            stored = await storage.perform(Get(storage.address("bot", key), wanted))
            assert len(stored.parts) == 50

    return work


def about_equal(few: dict[str, int], many: dict[str, int]) -> bool:
    # A larger tree may have one level more.
    return all(many[name] <= few.get(name, 0) * 1.1 + 2 * REPEATED for name in many)


async def test_a_record_with_many_parts_costs_what_one_with_few_costs(cost: Cost) -> None:
    few, many = 1, 2
    await cost(filled(few, 60))
    await cost(filled(many, PARTS))
    for work in (updated, appended):
        costs = [await cost(work(key)) for key in (few, many)]
        print(work.__name__, costs)
        assert about_equal(*costs)
        assert costs[1].get("parts", 0) <= 2 * REPEATED
    middle = tuple(f"{number:08}" for number in range(50))
    for wanted in (Range(limit=50), Range(limit=50, reverse=True), Range("00000005", "00000054"), middle):
        costs = [await cost(read(key, wanted)) for key in (few, many)]
        print(wanted if isinstance(wanted, Range) else "names", costs)
        assert about_equal(*costs)


async def test_fifty_entries_of_a_long_log_cost_what_they_cost_of_a_short_one(cost: Cost) -> None:
    def fill(key: int, count: int) -> Work:
        async def work(storage: Storage) -> None:
            for first in range(0, count, 1000):
                await Log(storage, "bot", key).append(*range(first, min(first + 1000, count)))

        return work

    def last(key: int) -> Work:
        async def work(storage: Storage) -> None:
            for _ in range(REPEATED):
                assert len(await Log(storage, "bot", key).read(limit=50, reverse=True)) == 50
                await Log(storage, "bot", key).append("one more")

        return work

    await cost(fill(1, 100))
    await cost(fill(2, dose("ENTRIES", 5_000, 10_000)))
    # Redis makes its index with the first read of a range.
    await cost(last(1))
    await cost(last(2))
    costs = [await cost(last(key)) for key in (1, 2)]
    print(costs)
    assert about_equal(*costs)


async def test_a_record_near_its_limit_does_not_add_up_its_parts_again(tmp_path: Path) -> None:
    async with on_postgres(tmp_path) as cost:
        await cost(filled(1, PARTS))

        async def work(storage: Storage) -> None:
            stored = await storage.perform(Get(storage.address("bot", 1), Range()))
            size = sum(len(name) + len(text) for name, text in stored.parts.items()) + 200
            for number in range(REPEATED):
                fields = storage.seal(storage.address("bot", 1)).fields({"count": f"{number}" * 10})
                change = Change(write=storage.ids(), set=fields, limit=size)
                await storage.perform(Apply(storage.address("bot", 1), change))

        rows = await cost(work)
        print(rows)
        assert rows["parts"] == PARTS
