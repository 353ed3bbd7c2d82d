"""Queues: submitted short runs worked off by two worker processes, ours and those of DBOS, on PostgreSQL and SQLite.

All runs are submitted before the workers start. A run has one node (DBOS: a workflow with one step) that increments a
number. The rate counts from the first start to the last end in both workers. Further figures: the latency from submit
to start at rest, and the reads of an idle worker beside 5,000 stuck runs and 5,000 runs of unknown flows.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import asyncpg
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

from stepwell import Storage, open_storage
from stepwell.nodes import Node, NodeFlow, Sleep, linear, worker

#: The number of runs, of rounds, and of workers.
RUNS, ROUNDS, WORKERS = int(os.environ.get("RUNS", "2000")), 3, 2
#: The number of submits for the latency, and the pause between two of them in seconds.
LATENCIES, PAUSE = 40, 0.1
STUCK = 5000
#: The most runs at once in each worker.
CONCURRENCY = 50
#: The options of DBOS's queue with which it was fastest. Without a limit one worker takes all runs.
DBOS_QUEUE: dict[str, Any] = {"polling_interval_sec": 0.05, "worker_concurrency": CONCURRENCY}


class Count(Node):
    """Increments a number, and adds the times of its start and end to a list."""

    def __init__(self, times: list[tuple[float, float]]) -> None:
        super().__init__()
        self.times = times

    def prep(self, shared: dict[str, Any]) -> Any:
        self.times.append((time.monotonic(), shared.get("at", 0.0)))
        return shared["n"]

    async def exec(self, number: int) -> int:
        return number + 1

    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: int) -> None:
        shared["n"] = exec_res


def counting(times: list[tuple[float, float]]) -> NodeFlow:
    return linear(Count(times), name="count")


def dbos() -> Any:
    """Return the package, which only this benchmark needs."""
    return importlib.import_module("dbos")


# The processes


def report_for_ever(times: list[Any]) -> None:
    """Print the number of starts, the times of the first and the last one, and the latencies so far."""

    def loop() -> None:
        while True:
            known = list(times)
            latencies = [start - at for start, at in known if at]
            print(
                json.dumps([len(known), known[0][0], known[-1][0], latencies] if known else [0, 0, 0, []]), flush=True
            )
            time.sleep(0.05)

    threading.Thread(target=loop, daemon=True).start()


async def our_worker(url: str) -> None:
    times: list[tuple[float, float]] = []
    async with open_storage(url) as storage:
        wait_for_go(times)
        async with worker([counting(times)], storage=storage, concurrency=CONCURRENCY):
            await asyncio.Event().wait()


def dbos_worker(url: str) -> None:
    library = dbos().DBOS
    times: list[tuple[float, float]] = []

    @library.step(name="count")
    async def count(number: int) -> int:
        times.append((time.monotonic(), 0.0))
        return number + 1

    @library.workflow(name="count_workflow")
    async def count_workflow(number: int) -> int:
        return await count(number)

    configure_dbos(url)
    wait_for_go(times)
    library.launch()
    library.register_queue("queue", **DBOS_QUEUE)
    threading.Event().wait()


def configure_dbos(url: str) -> None:
    dbos().DBOS(config={
        "name": "bench", "system_database_url": url, "log_level": "ERROR", "run_admin_server": False,
        "application_version": "1", "executor_id": str(os.getpid()), "use_listen_notify": False,
    })  # fmt: skip


def wait_for_go(times: list[Any]) -> None:
    """Print that this process is ready, and wait for a line."""
    print("ready", flush=True)
    sys.stdin.readline()
    report_for_ever(times)


class Process:
    """A worker process, and its last report."""

    def __init__(self, role: str, url: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.queue", role, url],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.last: list[Any] = [0, 0, 0, []]
        self.ready = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line == "ready\n":
                self.ready.set()
            elif line.startswith("["):
                self.last = json.loads(line)

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()


# The figures


async def worked_off(role: str, url: str) -> float:
    """Return the runs a second of two workers."""
    with ExitStack() as stack:
        processes = [stack.enter_context(Process(role, url)) for _ in range(WORKERS)]
        for process in processes:
            await asyncio.to_thread(process.ready.wait, 60)
        for process in processes:
            process.go()
        give_up = time.monotonic() + 120
        while sum(process.last[0] for process in processes) < RUNS and time.monotonic() < give_up:
            await asyncio.sleep(0.05)
        done = [process.last for process in processes if process.last[0]]
        return sum(count for count, *_ in done) / (
            max(last for _, _, last, _ in done) - min(first for _, first, *_ in done)
        )


async def our_rate(url: str) -> float:
    flow = counting([])
    async with open_storage(url) as storage:
        await asyncio.gather(*(flow.submit({"n": number}, storage=storage) for number in range(RUNS)))
    return await worked_off("ours", url)


async def dbos_rate(url: str) -> float:
    def submit() -> None:
        client = dbos().DBOSClient(system_database_url=url)
        for number in range(RUNS):
            client.enqueue({"queue_name": "queue", "workflow_name": "count_workflow", "app_version": "1"}, number)
        client.destroy()

    prepared = await asyncio.create_subprocess_exec(sys.executable, "-m", "benchmarks.queue", "prepare-dbos", url)
    await prepared.wait()
    await asyncio.to_thread(submit)
    return await worked_off("dbos", url)


def prepare_dbos(url: str) -> None:
    """Create the tables and the queue."""
    library = dbos().DBOS
    configure_dbos(url)
    library.launch()
    library.register_queue("queue", **DBOS_QUEUE)
    library.destroy()


async def latency(url: str) -> list[float]:
    """Return the milliseconds from submit to start at rest, in another process."""
    flow = counting([])
    with Process("ours", url) as process:
        await asyncio.to_thread(process.ready.wait, 60)
        process.go()
        async with open_storage(url) as storage:
            await asyncio.sleep(1)
            for number in range(LATENCIES):
                await flow.submit({"n": number, "at": time.monotonic()}, storage=storage)
                await asyncio.sleep(PAUSE)
            await asyncio.sleep(0.5)
        return [1000 * each for each in process.last[3]]


async def stuck(storage: Storage, connection: asyncpg.Connection[Any]) -> tuple[float, float, float, float]:
    """Return commits and rows a second of an idle worker, without and with runs that it cannot run."""
    times: list[tuple[float, float]] = []
    flow = counting(times)
    unknown = linear(Sleep(0.001), name="unknown", storage=storage)

    async def idle() -> tuple[float, float]:
        query = (
            "select xact_commit, (select sum(idx_tup_read) from pg_stat_user_indexes where schemaname = 'idle') "
            "from pg_stat_database where datname = current_database()"
        )
        # As autovacuum does from time to time.
        await connection.execute("vacuum analyze")
        await asyncio.sleep(1.5)
        before, began = await connection.fetchrow(query), time.monotonic()
        await asyncio.sleep(5)
        after, seconds = await connection.fetchrow(query), time.monotonic() - began
        return (after[0] - before[0]) / seconds, float(after[1] - before[1]) / seconds

    async with worker([flow], storage=storage):
        without = await idle()
    await asyncio.gather(*(unknown.submit({}, after=0) for _ in range(STUCK)))
    await asyncio.gather(*(linear(Fails, name="count").submit({"n": 1}, storage=storage) for _ in range(STUCK)))
    async with worker([linear(Fails, name="count")], storage=storage):
        while await storage.queued('"runs"', "count", limit=1):
            await asyncio.sleep(0.1)
    async with worker([flow], storage=storage):
        with_them = await idle()
        at = time.monotonic()
        await flow.submit({"n": 1}, storage=storage)
        while not times:
            await asyncio.sleep(0.001)
        started = times[0][0] - at
    print(f"a healthy run beside {2 * STUCK:,} others starts after {1000 * started:.0f} ms")
    assert started < 0.2, "it must start within 0.2 s"
    return *without, *with_them


class Fails(Node):
    def exec(self, prep_res: Any) -> None:
        raise ValueError("this run cannot go on")


async def places(kind: str, server: PostgresServer, folder: Path, number: int) -> tuple[str, str]:
    """Return the URLs of two new databases, ours and that of DBOS."""
    if kind == "SQLite":
        return f"sqlite:///{folder}/ours{number}.db", f"sqlite:///{folder}/dbos{number}.db"
    connection = await asyncpg.connect(server.url())
    await connection.execute(f"create database dbos_{number}")
    await connection.close()
    base = server.url().rpartition("/")[0]
    return f"{server.url()}?schema=ours_{number}", f"{base}/dbos_{number}".replace(
        "postgresql://", "postgresql+psycopg://"
    )


async def idle_cost(url: str) -> int:
    """Print the cost of an idle worker; return 1 if it grows with runs that it cannot run."""
    connection = await asyncpg.connect(url.partition("?")[0])
    async with open_storage(url, sweep_every=None) as storage:
        commits, rows, more_commits, more_rows = await stuck(storage, connection)
    await connection.close()
    print(
        f"an idle worker on PostgreSQL: {commits:.1f} statements and {rows:.0f} index entries a second; "
        f"beside {2 * STUCK:,} runs that it cannot run {more_commits:.1f} and {more_rows:.0f}"
    )
    return int(more_commits > 1.5 * commits + 1 or more_rows > rows + 100)


async def main() -> int:
    """Print the figures; return the number of missed targets."""
    # Thousands of runs fail on purpose.
    logging.getLogger("stepwell").setLevel(logging.ERROR)
    server = PostgresServer(durable=True).start()
    redis = RedisServer()
    redis.start()
    missed = 0
    try:
        with tempfile.TemporaryDirectory() as folder:
            for kind in ("PostgreSQL", "SQLite"):
                pairs = []
                for number in range(ROUNDS):
                    ours, theirs = await places(kind, server, Path(folder), number)
                    pairs.append((await our_rate(ours), await dbos_rate(theirs)))
                mine, its = (statistics.median(column) for column in zip(*pairs, strict=True))
                ratio = statistics.median(one / other for one, other in pairs)
                missed += ratio < 3
                mark = "   MISSED" if ratio < 3 else ""
                print(f"{kind:12} ours {mine:8,.0f}/s   DBOS {its:8,.0f}/s   {ratio:5.1f} times, at least 3{mark}")
            for kind, url in (("PostgreSQL", f"{server.url()}?schema=latency"), ("Redis", redis.url())):
                delays = await latency(url)
                middle = statistics.median(delays)
                missed += middle > 20
                print(f"submit to start on {kind}: median {middle:.1f} ms, worst {max(delays):.1f} ms, at most 20")
            missed += await idle_cost(f"{server.url()}?schema=idle")
    finally:
        redis.stop()
        server.stop()
    return missed


if __name__ == "__main__":
    role, url = sys.argv[1:3]
    if role == "ours":
        asyncio.run(our_worker(url))
    elif role == "dbos":
        dbos_worker(url)
    else:
        prepare_dbos(url)
