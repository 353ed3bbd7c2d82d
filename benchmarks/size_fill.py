"""Many conversations as the library stores them, for ``benchmarks.size``.

PostgreSQL: the library writes a few hundred conversations. Their rows are copied to other keys with new checksums, tags
and ids. Redis: the library writes all of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import asyncpg

from stepwell import Storage, open_storage
from stepwell.codec import Seal, address_of
from stepwell.fsm import FSM, Flow, state
from stepwell.record import Limits

__all__ = ["BOT", "FIRST", "FLOWS", "STEPS", "fill_postgres", "fill_redis"]

BOT, FLOWS, STEPS = "bot", ("registration", "shop"), 5
#: The id of the first user.
FIRST = 100_000_000
#: Conversations that the library writes before their rows are copied, and rows of one COPY.
PATTERNS, COPIED = 500, 20_000
#: Conversations at the same time.
AT_ONCE = 50


def make_flow(name: str) -> type[Flow]:
    """Return a flow with some states, each followed by the next."""
    states = {f"step_{n}": state(to=[f"step_{(n + 1) % STEPS}"]) for n in range(STEPS)}
    return types.new_class(
        name, (Flow,), {"name": name}, lambda body: body.update(states | {"default_state": states["step_0"]})
    )


MADE = [make_flow(name) for name in FLOWS]


async def converse(storage: Storage, numbers: Iterator[int]) -> None:
    """Handle one update of each of these users, which starts a flow and moves it to one of its states."""
    fsm = FSM(BOT, storage=storage, flows=MADE)

    async def work() -> None:
        for number in numbers:
            user = FIRST + number
            async with fsm.conversation(key=(user, user), update_id=700_000_000 + number) as ctx:
                ctx.start_flow(MADE[number % 2])
                for step in range(number // 2 % STEPS):
                    ctx.transition(f"step_{step + 1}")
                ctx.update_data(name="Alice Example", count=0)

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


async def fill_redis(url: str, count: int) -> None:
    """Store conversations of ``count`` users by the library."""
    await in_processes(converse_with, url, count)


def converse_with(url: str, numbers: range) -> None:
    """Handle one update of each of these users, in a process of its own."""

    async def work() -> None:
        async with open_storage(url, sweep_every=None) as storage:
            await converse(storage, iter(numbers))

    asyncio.run(work())


async def in_processes(work: Callable[..., None], *args: Any) -> None:
    """Call a function in a process for each core, with a share of the numbers below the last argument."""
    *others, count = args
    processes = os.cpu_count() or 1
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(processes) as pool:
        parts = [range(n, count, processes) for n in range(processes)]
        await asyncio.gather(*(loop.run_in_executor(pool, work, *others, part) for part in parts))


async def fill_postgres(url: str, schema: str, count: int) -> None:
    """Store conversations of ``count`` users."""
    async with open_storage(url, schema=schema, sweep_every=None) as storage:
        await converse(storage, iter(range(min(PATTERNS, count))))
    connection = await asyncpg.connect(url)
    rows = [dict(row) for row in await connection.fetch(f"select * from {schema}.records order by key")]
    await in_processes(copy_rows, url, schema, rows, count)
    await connection.execute(
        f"insert into {schema}.tagged select distinct {schema}.tag_hash(r.namespace, x.tag), r.key "
        f"from {schema}.records r, unnest(r.tags) x(tag) on conflict do nothing"
    )
    await connection.close()


def copy_rows(url: str, schema: str, rows: list[dict[str, Any]], numbers: range) -> None:
    """Copy the rows of the first users to others of these users."""

    async def copy() -> None:
        connection = await asyncpg.connect(url)
        for start in range(0, len(numbers), COPIED):
            new = [number for number in numbers[start : start + COPIED] if number >= len(rows)]
            records = [tuple(copied(rows[number % len(rows)], number).values()) for number in new]
            await connection.copy_records_to_table("records", schema_name=schema, columns=[*rows[0]], records=records)
        await connection.close()

    asyncio.run(copy())


def copied(row: dict[str, Any], number: int, limits: Limits = Limits()) -> dict[str, Any]:  # noqa: B008
    """Return a row for another user. Its texts get new checksums, because these include the key."""
    user = FIRST + number
    address = address_of(BOT, (user, user), limits)
    seal = Seal(address, limits, limits.record)

    def again(kind: str, name: str, text: str) -> str:
        return seal.seal_body(kind, name, text[9:].encode())

    fields = {name: again("f", name, text) for name, text in json.loads(row["data"]).items()}
    return row | {
        "key": address.key,
        "write": os.urandom(8).hex(),
        "head": again("h", "", row["head"]),
        "memo": again("m", "", row["memo"]),
        "tags": [f"{tag.partition(':')[0]}:{user}" for tag in row["tags"]],
        "data": json.dumps(fields),
    }
