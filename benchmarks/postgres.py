"""PostgreSQL with fsync on, beside plain asyncpg with optimistic locking."""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Any

import asyncpg
from tests.servers.postgres import PostgresServer

from benchmarks.sqlite import ROUNDS, TASKS, Step, bound, interleaved, middle, ratios
from stepwell import Storage
from stepwell.codec import Seal
from stepwell.record import Address, Limits, Place
from stepwell.slot import Slot
from stepwell.storage.postgres import PostgresStorage

STORED = int(os.environ.get("STORED", "1000000"))
DATA = {"name": "Alice", "email": "alice@example.com", "language": "en", "count": 0}


async def main() -> int:
    server = PostgresServer(durable=True).start()
    try:
        return await side_by_side(server) + await one_key(server) + await a_million_stored(server)
    finally:
        server.stop()


def updates(storage: Storage, key: Any = lambda task, turn: (task, task)) -> Step:
    """Claim, change one field and the state, commit."""

    async def update(task: int, turn: int) -> None:
        async with Slot(storage, "bot", key(task, turn)) as slot:
            slot.flow, slot.state = "registration", ("get_name", "get_email")[turn % 2]
            slot.data["count"] = turn
            await slot.commit()

    return update


def plain(pool: Any) -> Step:
    """Read and update with asyncpg; the update requires the version that was read."""

    async def update(task: int, turn: int) -> None:
        async with pool.acquire() as connection:
            row = await connection.fetchrow("select version, state, data from conversation where key = $1", task)
            data = json.loads(row["data"])
            data["count"] = turn
            await connection.execute(
                "update conversation set version = version + 1, state = $3, data = $4 where key = $1 and version = $2",
                task,
                row["version"],
                ("get_name", "get_email")[turn % 2],
                json.dumps(data),
            )

    return update


async def side_by_side(server: PostgresServer) -> int:
    async with (
        asyncpg.create_pool(server.url(), min_size=10, max_size=10) as pool,
        PostgresStorage(server.url(), schema="side_by_side") as storage,
    ):
        await pool.execute(
            "create table conversation "
            "(key bigint primary key, version bigint not null, state text, data jsonb not null)"
        )
        rows = [(task, json.dumps(DATA)) for task in range(TASKS)]
        await pool.executemany("insert into conversation values ($1, 1, 'get_name', $2)", rows)
        for task in range(TASKS):
            await storage.set_data("bot", (task, task), DATA)
        steps = {
            "plain asyncpg": (plain(pool), TASKS),
            "ours": (updates(storage), TASKS),
            "alone, plain asyncpg": (plain(pool), 1),
            "alone": (updates(storage), 1),
        }
        await interleaved(steps, rounds=1)
        rates = await interleaved(steps)
    print(f"{TASKS} tasks, asyncpg SELECT + guarded UPDATE, pool of 10: {middle(rates['plain asyncpg']):9,.0f}/s")
    print(f"{TASKS} tasks, claim + change + commit:                     {middle(rates['ours']):9,.0f}/s")
    print(f"1 task,   asyncpg SELECT + guarded UPDATE:              {middle(rates['alone, plain asyncpg']):9,.0f}/s")
    print(f"1 task,   claim + change + commit:                      {middle(rates['alone']):9,.0f}/s")
    return bound("claim + change + commit over plain asyncpg", ratios(rates["ours"], rates["plain asyncpg"]), least=2.5)


async def one_key(server: PostgresServer) -> int:
    """Measure updates of one conversation from many tasks, which run one after the other."""
    async with PostgresStorage(server.url(), schema="one_key") as storage:
        update = updates(storage, lambda task, turn: (1, 1))
        seconds = []
        for _ in range(ROUNDS):
            started = time.perf_counter()
            await asyncio.gather(*(update(task, task) for task in range(TASKS)))
            seconds.append(time.perf_counter() - started)
    return bound(f"seconds for {TASKS} updates of one key from {TASKS} tasks", seconds, most=0.5)


async def a_million_stored(server: PostgresServer) -> int:
    """Compare the rate with few stored conversations and with very many."""
    async with (
        PostgresStorage(server.url(), schema="few") as few,
        PostgresStorage(server.url(), schema="many") as many,
    ):
        started = time.perf_counter()
        await fill(server, "few", 2000)
        await fill(server, "many", STORED)
        print(f"{STORED:,} conversations stored in {time.perf_counter() - started:.0f} s")

        def spread(count: int) -> Any:
            # 2,000 active users, spread over all stored conversations.
            return lambda task, turn: ((task * 7919 + turn * 104_729) % 2000 * (count // 2000),) * 2

        steps = {"few": (updates(few, spread(2000)), TASKS), "many": (updates(many, spread(STORED)), TASKS)}
        await interleaved(steps, rounds=4)
        rates = await interleaved(steps)
    print(f"{TASKS} tasks among 2,000 stored conversations: {middle(rates['few']):9,.0f}/s")
    print(f"{TASKS} tasks among {STORED:,} stored:       {middle(rates['many']):9,.0f}/s")
    return bound("rate among many over rate among few", ratios(rates["many"], rates["few"]), least=0.85)


async def fill(server: PostgresServer, schema: str, count: int) -> None:
    """Insert conversations in bulk, encoded as the library does."""
    limits = Limits()

    def row(number: int) -> tuple[Any, ...]:
        address = Address("bot", f"({number},{number})")
        seal = Seal(address, limits, limits.record)
        head = seal.head(Place("registration", "get_email"))
        fields = seal.fields(DATA)
        size = sum(len(name) + len(text) for name, text in fields.items())
        return *address, 1, "w", True, None, head.flow, head.state, head.text, json.dumps(fields), size

    connection = await asyncpg.connect(server.url())
    columns = ["namespace", "key", "version", "write", "alive", "removable_at", "flow", "state", "head", "data", "size"]
    for start in range(0, count, 50_000):
        rows = [row(number) for number in range(start, min(start + 50_000, count))]
        await connection.copy_records_to_table("records", schema_name=schema, columns=columns, records=rows)
    await connection.execute(f"vacuum analyze {schema}.records")
    await connection.execute("checkpoint")
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main())
