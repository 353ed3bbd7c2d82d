"""Updates and the inspector's pages with very many conversations: five million in PostgreSQL, one million in Redis.

``STORED_POSTGRES`` and ``STORED_REDIS`` set the sizes. ``python -m benchmarks.size`` fills the servers, prints their
addresses and keeps them; with these in the environment, ``python -m benchmarks size`` measures without filling.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import time

import asyncpg
import psutil
from tests.servers.postgres import PostgresServer, as_unprivileged_user, binaries
from tests.servers.redis import RedisServer, system_binary

from benchmarks import inspector
from benchmarks.size_fill import BOT, FIRST, STEPS, fill_postgres, fill_redis
from benchmarks.sqlite import TASKS, Step, bound, interleaved, middle, ratios
from stepwell import Storage, open_storage
from stepwell.inspector.subject import COUNTED
from stepwell.slot import Slot

MANY = {
    "PostgreSQL": int(os.environ.get("STORED_POSTGRES", "5000000")),
    "Redis": int(os.environ.get("STORED_REDIS", "1000000")),
}
FEW = 2_000
ROUNDS = int(os.environ.get("ROUNDS", "25"))
#: Settings while the server is filled. Afterwards it has those of the other benchmarks.
FILLING = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "20GB"} | {
    "work_mem": "512MB",
    "maintenance_work_mem": "1GB",
    "synchronous_commit": "off",
}
#: Those of a server for so many records (docs/postgresql.md): memory for the pages in use, and rare checkpoints.
SETTINGS = {
    "shared_buffers": f"{psutil.virtual_memory().total // 4 >> 20}MB",
    "checkpoint_timeout": "15min",
    "min_wal_size": "1GB",
    "max_wal_size": "16GB",
    "autovacuum": "on",
}
#: Updates before the rates are compared. PostgreSQL then has most of the pages in its memory and has logged them since
#: the checkpoint, as it has for most of the time between two checkpoints.
BEFORE = {"PostgreSQL": 1_000_000, "Redis": 0}
#: The least rate with many conversations, of that with few.
LEAST = 0.85


class Servers:
    """Filled servers: the addresses of few and of many conversations on each."""

    def __init__(self) -> None:
        self.urls: dict[str, tuple[str, str]] = {}
        self._started: list[PostgresServer | RedisServer] = []
        for kind in MANY:
            given = os.environ.get(kind.upper())
            if given:
                few, many = given.split()
                self.urls[kind] = few, many

    async def fill(self) -> None:
        """Start and fill the servers that are not given."""
        # Not in memory: the disk is a part of what is measured.
        os.environ.setdefault("TMPDIR", "/var/tmp")
        if "PostgreSQL" not in self.urls:
            await self._fill_postgres()
        if "Redis" not in self.urls:
            await self._fill_redis()

    async def _fill_postgres(self) -> None:
        started, count = time.perf_counter(), MANY["PostgreSQL"]
        server = PostgresServer(durable=True, settings=SETTINGS)
        # The usual size. The tests have one of 1 MB, for quick starts.
        resize = [*as_unprivileged_user(), binaries() / "pg_resetwal", "--wal-segsize=16", server.data]
        subprocess.run(resize, check=True, stdout=subprocess.DEVNULL)
        server.start(**FILLING)
        self._started.append(server)
        await fill_postgres(server.url(), "few", FEW)
        await fill_postgres(server.url(), "many", count)
        few, many = f"{server.url()}?schema=few", f"{server.url()}?schema=many"
        async with open_storage(many, sweep_every=None) as storage:
            await inspector.write(storage, [each async for each in inspector.runs(storage)])
        connection = await asyncpg.connect(server.url())
        await connection.execute("vacuum analyze")
        await connection.execute("checkpoint")
        await connection.close()
        server.shut_down()
        os.sync()
        server.start()
        self.urls["PostgreSQL"] = few, many
        print(f"PostgreSQL: {count:,} conversations stored in {time.perf_counter() - started:.0f} s", flush=True)

    async def _fill_redis(self) -> None:
        started, count = time.perf_counter(), MANY["Redis"]
        # Its allocator is jemalloc, as usual. With that of libc, Lua takes three times as long once the heap is large.
        few, many = RedisServer(program=system_binary()), RedisServer(program=system_binary())
        self._started += [few, many]
        await fill_redis(few.url(), FEW)
        await fill_redis(many.url(), count)
        async with open_storage(many.url(), sweep_every=None) as storage:
            await inspector.write(storage, [each async for each in inspector.runs(storage)])
        self.urls["Redis"] = few.url(), many.url()
        print(f"Redis: {count:,} conversations stored in {time.perf_counter() - started:.0f} s", flush=True)

    def stop(self) -> None:
        for server in self._started:
            server.stop()


async def main() -> int:
    """Print the rates and the pages of both servers; return the number of missed bounds."""
    servers, missed = Servers(), 0
    try:
        await servers.fill()
        for kind, (few, many) in servers.urls.items():
            missed += await rates(kind, few, many)
            missed += await pages(kind, many)
    finally:
        servers.stop()
    return missed


def updates(storage: Storage, users: int, apart: int = 1) -> Step:
    """Update random ones of these users, which are ``apart`` in the storage: a transition and a changed field."""
    dice = random.Random(7)

    async def update(task: int, turn: int) -> None:
        # Tasks have different users, so that none waits for another.
        user = FIRST + (dice.randrange(users // TASKS) * TASKS + task) * apart
        async with Slot(storage, BOT, (user, user)) as slot:
            assert slot.state is not None, f"user {user} is not stored"
            slot.state = f"step_{(int(slot.state[-1]) + 1) % STEPS}"
            slot.data["count"] += 1
            await slot.commit()

    return update


async def rates(kind: str, few_url: str, many_url: str) -> int:
    """Compare the rate with few stored conversations and with very many."""
    count = MANY[kind]
    async with open_storage(few_url, sweep_every=None) as few, open_storage(many_url, sweep_every=None) as many:
        steps = {
            f"any of {FEW:,} stored": (updates(few, FEW), TASKS),
            f"any of {FEW:,}, spread over {count:,} stored": (updates(many, FEW, count // FEW), TASKS),
            f"any of {count:,} stored": (updates(many, count), TASKS),
        }
        early = await interleaved(steps, rounds=ROUNDS)
        await several(steps[f"any of {count:,} stored"][0], BEFORE[kind])
        found = await interleaved(steps, rounds=ROUNDS)
    base, *others = found
    for name in others:
        print(f"{kind}, {name}, over {base}, at the start: {middle(ratios(early[name], early[base])):.2f}")
    for name in found:
        print(f"{kind}, {TASKS} tasks, {name}: {middle(found[name]):9,.0f}/s")
    return sum(bound(f"{kind}, {name}, over {base}", ratios(found[name], found[base]), least=LEAST) for name in others)


async def several(update: Step, count: int) -> None:
    """Update this often, in all tasks."""
    left = iter(range(count))

    async def work(task: int) -> None:
        for turn in left:
            await update(task, turn)

    await asyncio.gather(*(work(task) for task in range(TASKS)))


async def pages(kind: str, url: str) -> int:
    """Time the inspector's pages, and one record."""
    middle_user = FIRST + MANY[kind] // 2
    inspector.PAGES |= {
        "conversations of a user": ("records", {"user": str(middle_user)}),
        "conversations without an update for an hour": ("records", {"older": "3600"}),
        "one record": ("record", {"bot": BOT, "key": f"({middle_user}, {middle_user})"}),
    }
    missed = 0
    print(f"{kind}: pages of the inspector with {MANY[kind]:,} conversations and {inspector.RUNS:,} runs")
    async with open_storage(url, sweep_every=None) as storage:
        for name, (page, _) in inspector.PAGES.items():
            taken = [await inspector.show(storage, name) for _ in range(inspector.ROUNDS)]
            if kind == "Redis" and not page:
                # It cannot count by an index. The overview does not wait for these counts.
                print(f"  {name}, of up to {COUNTED:,}, in the background: {middle(taken):.0f} milliseconds")
            else:
                missed += bound(f"  {name}, milliseconds", taken, most=inspector.BOUND)
    return missed


async def keep() -> None:
    """Fill the servers, print their addresses, and keep them until a signal."""
    servers, end = Servers(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, end.set)
    try:
        await servers.fill()
        for kind, urls in servers.urls.items():
            print(f"export {kind.upper()}='{' '.join(urls)}'", flush=True)
        await end.wait()
    finally:
        servers.stop()


if __name__ == "__main__":
    asyncio.run(keep())
