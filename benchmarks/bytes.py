"""The bytes that a conversation with two small fields takes in each backend: ``COUNT=100000`` makes so many."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import asyncpg
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer, binary, system_binary

from benchmarks.bytes_postgres import SIZES, VACUUM
from stepwell import Storage, open_storage
from stepwell.fsm import FSM, Flow, state

COUNT = int(os.environ.get("COUNT", "10000"))
#: Conversations at the same time.
AT_ONCE = 50
#: The most bytes that a conversation may take in Redis without its memo, by the server's own count of its keys.
REDIS_BOUND = 500
#: The kinds of keys in Redis, by the letter after their hash tag.
KINDS = {"r": "record", "m": "memo, for a day", "t": "index of tags", "k": "index of records"}
#: The most bytes that a conversation may take in PostgreSQL, with its memo.
POSTGRES_BOUND = 900


class Form(Flow, name="form"):
    """Two states."""

    name = state(to=["email"])
    email = state(to=["name"])
    default_state = name


async def fill(storage: Storage, users: range) -> None:
    """Handle the first update of each of these users."""
    fsm = FSM("registration_bot", storage=storage, flows=[Form])
    left = iter(users)

    async def work(users: Iterator[int]) -> None:
        for user in users:
            async with fsm.conversation(key=(user, user), update_id=700_000_000 + user) as ctx:
                ctx.start_flow(Form)
                ctx.update_data(name="Alice Example", count=0)

    await asyncio.gather(*(work(left) for _ in range(AT_ONCE)))


async def main() -> int:
    """Print the bytes of each backend; return 1 if one takes more than its bound."""
    first = 100_000_000
    users = range(first, first + COUNT)
    print(f"{COUNT:,} conversations, bytes for each of them")
    with tempfile.TemporaryDirectory(prefix="stepwell-bytes-") as folder:
        path = Path(folder) / "bot.db"
        async with open_storage(f"sqlite:///{path}", sweep_every=None) as storage:
            await fill(storage, users)
        print(f"SQLite            {path.stat().st_size / COUNT:7.0f}  the file")
    missed = [await redis(name, users) for name in dict.fromkeys((binary(), system_binary()))]
    missed.append(await postgres(users))
    return int(any(missed))


async def redis(program: str, users: range) -> bool:
    """Print the bytes by kind of key; return whether they are more than the bound, without memos."""
    server = RedisServer(program=program)
    try:
        with server.client() as client:
            async with open_storage(server.url(), sweep_every=None) as storage:
                await fill(storage, range(AT_ONCE))
                before = client.info("memory")["used_memory"]
                await fill(storage, users)
                facts = client.info("memory")
                name = f"Redis, {facts['mem_allocator'].partition('-')[0]}"
                print(f"{name:17} {(facts['used_memory'] - before) / len(users):7.0f}  used_memory")
            sizes: Counter[str] = Counter()
            cursor = None
            while cursor != 0:
                cursor, keys = client.scan(cursor or 0, count=1000)
                with client.pipeline(transaction=False) as pipeline:
                    for key in keys:
                        pipeline.memory_usage(key, samples=0)
                    for key, size in zip(keys, pipeline.execute(), strict=True):
                        sizes[key.partition("}:")[2][:1]] += size
    finally:
        server.stop()
    each = {letter: size / (len(users) + AT_ONCE) for letter, size in sizes.most_common() if letter in KINDS}
    for letter, size in each.items():
        print(f"{'':17} {size:7.0f}  {KINDS[letter]}")
    total = sum(size for letter, size in each.items() if letter != "m")
    print(f"{'':17} {total:7.0f}  of {REDIS_BOUND}: all keys but the memo")
    return total > REDIS_BOUND


async def postgres(users: range) -> bool:
    """Print the bytes by table and index; return whether they are more than the bound."""
    server = PostgresServer(settings=VACUUM).start()
    try:
        async with open_storage(server.url(), sweep_every=None) as storage:
            await fill(storage, users)
        connection = await asyncpg.connect(server.url())
        await connection.execute("vacuum analyze")
        sizes = {name: size / len(users) for name, size in await connection.fetch(SIZES)}
        await connection.close()
    finally:
        server.stop()
    total = sum(sizes.values())
    print(f"PostgreSQL        {total:7.0f}  of {POSTGRES_BOUND}: tables with their indexes")
    for name, size in sizes.items():
        if size > 1:
            print(f"{'':17} {size:7.0f}  {name}")
    return total > POSTGRES_BOUND
