"""The pages of the inspector over a million conversations and 100,000 runs, in SQLite and in PostgreSQL.

Each time is the best of several rounds, because other load on the machine only adds to it. Beside it is what the page
read: in PostgreSQL the rows of tables and indexes, in SQLite the steps of its virtual machine, a few for each row.
``STORED`` and ``RUNS`` set the sizes.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import asyncpg
from tests.servers.postgres import PostgresServer

from stepwell import MemoryStorage, PostgresStorage, SQLiteStorage, Storage
from stepwell.errors import Parked
from stepwell.inspector.flows import KnownFlows
from stepwell.inspector.pages import VIEWS
from stepwell.inspector.subject import COUNTED, Subject
from stepwell.nodes import Node, NodeFlow, Wait, linear
from stepwell.operate.counts import all_counts
from stepwell.operate.records import RecordFilter, listed
from stepwell.record import DAY, Change, OpenedHead, Place, Queue
from stepwell.record import RUNS as RUNS_NAMESPACE
from stepwell.storage import Apply, Get

STORED, RUNS = int(os.environ.get("STORED", "1000000")), int(os.environ.get("RUNS", "100000"))
ROUNDS = 7
#: Milliseconds in which a page must answer.
BOUND = 300
#: Records that are written at once.
BATCH = 2000
#: Records that a search reads before it is stopped.
SEARCHED = min(50_000, STORED // 2)
STATES = [(flow, f"step_{number}") for flow in ("registration", "shop") for number in range(5)]


async def main() -> int:
    """Print a table for each backend; return the number of missed bounds."""
    # Not in /tmp, which may be in memory.
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder:
        path = f"{folder}/bot.db"
        async with SQLiteStorage(path, sweep_every=None) as sqlite:
            await fill(sqlite)
            missed = await measure("SQLite", sqlite, await steps(path))
            await search(sqlite)
    server = PostgresServer(durable=True, settings={"session_preload_libraries": "auto_explain"}).start()
    try:
        async with PostgresStorage(server.url(), sweep_every=None) as postgres:
            await fill(postgres)
            missed += await measure("PostgreSQL as loaded", postgres, await rows(server))
        # The server counts the writes of a connection when it is closed.
        await run_sql(server, "vacuum analyze stepwell.records")
        async with PostgresStorage(server.url(), sweep_every=None) as postgres:
            missed += await measure("PostgreSQL after VACUUM", postgres, await rows(server))
            await search(postgres)
            await write(postgres, conversations(range(0, STORED, 20)))
            missed += await measure("PostgreSQL after writes to 5 % of the conversations", postgres, await rows(server))
    finally:
        server.stop()
    return missed


#: The pages, each with its parameters.
PAGES: dict[str, tuple[str, dict[str, str]]] = {
    "overview": ("overview", {}),
    "conversations": ("records", {}),
    "conversations of a flow and state": ("records", {"flow": "shop", "state": "step_3"}),
    "conversations of a state": ("records", {"state": "step_3"}),
    "conversations of a flow": ("records", {"flow": "shop"}),
    "runs": ("runs", {}),
    "failed runs": ("runs", {"status": "failed"}),
    "runs sorted by their waiting time": ("runs", {"sort": "-waiting"}),
    "one run": ("run", {"id": "run-1"}),
    "queues": ("queues", {}),
    "one queue": ("queue", {"name": "import"}),
    "one queue, the 20th page": ("queue", {"name": "import", "after": "1000"}),
    "flows": ("flow_counts", {}),
    "messages": ("messages", {"bot": "bot"}),
    "audit": ("audit", {}),
    "counts per state and status": ("", {}),
}


async def show(storage: Storage, name: str) -> float:
    """Show a page as for the first time, and return the milliseconds."""
    page, params = PAGES[name]
    subject = Subject(storage, KnownFlows([]))
    started = time.perf_counter()
    if page:
        await VIEWS[page](subject, params)
    else:
        await all_counts(storage, limit=COUNTED)
    taken = (time.perf_counter() - started) * 1e3
    await subject.close()
    return taken


async def measure(title: str, storage: Storage, read: dict[str, int]) -> int:
    """Print the time of each page and what it read; return the number of pages that took too long."""
    print(f"{title}: {STORED:,} conversations, {RUNS:,} runs\n{'':40} milliseconds         read")
    missed = 0
    for name in PAGES:
        taken = min([await show(storage, name) for _ in range(ROUNDS)])
        missed += taken > BOUND
        late = f"   MISSED {BOUND} ms" if taken > BOUND else ""
        print(f"  {name:40} {taken:10.1f} {read[name]:12,}{late}", flush=True)
    counts = await all_counts(storage, limit=COUNTED)
    if any(row.more for row in counts.states):
        print(f"    counts of the first {max(row.records for row in counts.states):,} conversations of each state")
    started = time.perf_counter()
    exact = await all_counts(storage, limit=COUNTED, oldest=True)
    taken = (time.perf_counter() - started) * 1e3
    assert sum(row.records for row in exact.states) == STORED
    assert sum(row.runs for row in exact.runs) == RUNS
    print(f"  {'exact with oldest writes, in background':40} {taken:10.1f}", flush=True)
    return missed


async def search(storage: Storage) -> None:
    """Search by a data field, which has no index, and stop."""
    read = 0

    def on_look(looked: int) -> None:
        nonlocal read
        read = looked
        if looked >= SEARCHED:
            enough.set()

    async def look() -> None:
        async for _ in listed(storage, "bot", RecordFilter(fields={"count": -1}), on_look=on_look):
            pass

    enough = asyncio.Event()
    started = time.perf_counter()
    task = asyncio.create_task(look())
    await enough.wait()
    stopped = time.perf_counter()
    task.cancel()
    await asyncio.wait({task})
    ended = time.perf_counter()
    print(
        f"  a search by a data field reads {read / (stopped - started):,.0f} records a second, and stops within "
        f"{(ended - stopped) * 1e3:.1f} ms",
        flush=True,
    )


# What a page reads


async def steps(path: str) -> dict[str, int]:
    """Return the steps of SQLite's virtual machine for each page."""
    counted = 0

    def profile(event: dict[str, Any]) -> None:
        nonlocal counted
        counted += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

    def hook(connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, profile)

    found = {}
    apsw.connection_hooks.append(hook)
    try:
        async with SQLiteStorage(path, sweep_every=None) as storage:
            for name in PAGES:
                counted = 0
                await show(storage, name)
                found[name] = counted
    finally:
        apsw.connection_hooks.remove(hook)
    return found


async def rows(server: PostgresServer) -> dict[str, int]:
    """Return the rows that PostgreSQL reads for each page, from the plans in its log."""
    explain = ("log_min_duration = 0", "log_analyze = on", "log_timing = off", "log_format = json")
    for setting in explain:
        await run_sql(server, f"alter system set auto_explain.{setting}")
    await run_sql(server, "select pg_reload_conf()")
    found = {}
    async with PostgresStorage(server.url(), sweep_every=None) as storage:
        for name in PAGES:
            start = server.log.stat().st_size
            await show(storage, name)
            log = server.log.read_bytes()[start:].decode()
            plans = re.findall(r"plan:\n(\t\{.*?^\t\})", log, re.DOTALL | re.MULTILINE)
            found[name] = sum(read_by(node) for plan in plans for node in nodes(json.loads(plan)["Plan"]))
    await run_sql(server, "alter system reset all")
    await run_sql(server, "select pg_reload_conf()")
    return found


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)


def read_by(node: dict[str, Any]) -> int:
    """Return the rows that a node of a plan read from a table or an index."""
    if "Relation Name" not in node:
        return 0
    return round((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])


async def run_sql(server: PostgresServer, sql: str) -> None:
    connection = await asyncpg.connect(server.url())
    await connection.execute(sql)
    await connection.close()


# Records


async def fill(storage: Storage) -> None:
    """Store conversations and runs."""
    started = time.perf_counter()
    await write(storage, conversations(range(STORED)))
    await write(storage, [each async for each in runs(storage)])
    print(f"\nstored in {time.perf_counter() - started:.0f} s")


async def write(storage: Storage, records: Iterable[tuple[str, Any, OpenedHead, dict[str, Any], Queue | None]]) -> None:
    batch: list[Apply] = []

    async def flush() -> None:
        for result in await storage.run(batch):
            if isinstance(result, Exception):
                raise result
        batch.clear()

    for bot, key, head, data, queue in records:
        address = storage.address(bot, key)
        seal = storage.seal(address)
        # Every fourth conversation has a timer.
        deadline = time.time() + DAY if data.get("count", 1) % 4 == 0 else None
        change = Change(storage.ids(), head=seal.head(head), set=seal.fields(data), queue=queue, deadline=deadline)
        batch.append(Apply(address, change))
        if len(batch) == BATCH:
            await flush()
    if batch:
        await flush()


def conversations(numbers: Iterable[int]) -> Iterator[tuple[str, Any, OpenedHead, dict[str, Any], Queue | None]]:
    for number in numbers:
        data = {"name": "Alice", "email": "alice@example.com", "count": number}
        yield "bot", (number, number), OpenedHead(Place(*STATES[number % len(STATES)])), data, None


class Fails(Node):
    async def exec(self, _: Any) -> None:
        raise ValueError("the payment was refused")


async def runs(storage: Storage) -> AsyncIterator[tuple[str, Any, OpenedHead, dict[str, Any], Queue | None]]:
    """Yield copies of a run of each kind."""
    heads: list[OpenedHead] = []
    async with MemoryStorage() as memory:
        parked: NodeFlow = linear(Wait("ask"), name="approval", storage=memory)
        failed: NodeFlow = linear(Fails(), name="payment", storage=memory)
        queued: NodeFlow = linear(Fails(), name="import", storage=memory)
        with suppress(Parked):
            await parked.run({"order": 1}, flow_id="parked")
        with suppress(ValueError):
            await failed.run({"order": 1}, flow_id="failed")
        await queued.submit({"order": 1}, flow_id="queued")
        for name in ("parked", "failed", "queued"):
            address = memory.address(RUNS_NAMESPACE, name)
            stored = await memory.perform(Get(address))
            heads.append(memory.seal(address).open_head(stored.head))
    queues = [None, None, Queue("import")]
    for number in range(RUNS):
        kind = number % len(heads)
        yield RUNS_NAMESPACE, f"run-{number}", heads[kind], {"order": number}, queues[kind]


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
