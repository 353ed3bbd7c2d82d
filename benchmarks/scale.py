"""The cost of an update by component, on Redis Cluster and PostgreSQL, with several nodes and client processes.

The CPU times of one node calibrate a simulation: one client with several numbers of users gives the costs of an
operation, of a batch and of waking a process, and four clients give the growth with the clients. Its rates are compared
with those that are measured, and must be within 20 %. Writes ``docs/scale.md``.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any, NamedTuple

import asyncpg
import psutil
from redis import Redis
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisCluster

from benchmarks.redis import whole_updates
from benchmarks.scale_model import ALONE, CALIBRATION, CLIENTS, CORES, USERS, Measured, compare, middle, spread
from benchmarks.scale_page import write_page
from stepwell.storage import Operation, Storage
from stepwell.storage.observers import observe_storages
from stepwell.storage.operations import Result

SECONDS = float(os.environ.get("SECONDS", "1.5"))
ROUNDS = int(os.environ.get("ROUNDS", "5"))
#: A measurement is repeated, at most so often, if other programs used more than this part of the cores meanwhile.
OTHERS, REPEATS = 0.1, 2


class Counters(NamedTuple):
    """Seconds of CPU time of the server and of the whole machine, and bytes on the loopback interface."""

    server_cpu: float
    machine_cpu: float
    wire: float


async def work(url: str, first: int, users: int, seconds: float) -> None:
    """Update the records of these users until the time is over; print the count, the CPU time and the batches."""
    sizes: list[int] = []
    observe_storages(partial(count_batches, sizes))
    update, close = whole_updates(url)
    await asyncio.gather(*(update(first + user) for user in range(users)))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    sizes.clear()
    end, done, cpu = time.perf_counter() + seconds, 0, time.process_time()

    async def user(number: int) -> None:
        nonlocal done
        while time.perf_counter() < end:
            await update(number)
            done += 1

    await asyncio.gather(*(user(first + number) for number in range(users)))
    print(json.dumps([done, time.process_time() - cpu, len(sizes), sum(sizes)]), flush=True)
    # The counters of the server are read first: a session that ends takes its CPU time with it.
    await asyncio.to_thread(sys.stdin.readline)
    await close()


def count_batches(sizes: list[int], storage: Storage) -> None:
    """Add the size of each batch of a storage to a list."""
    run = storage.run

    def counted(operations: Sequence[Operation]) -> Awaitable[list[Result]]:
        sizes.append(len(operations))
        return run(operations)

    storage.run = counted  # type: ignore[method-assign, assignment]


class Server:
    """A Redis Cluster or a PostgreSQL server, and its counters."""

    def __init__(self, kind: str, nodes: int) -> None:
        self.kind, self.nodes = kind, nodes
        self._cluster = RedisCluster(masters=nodes, replicas=0) if kind == "Redis Cluster" else None
        self._postgres = None if self._cluster else PostgresServer(durable=True).start()

    @property
    def url(self) -> str:
        return self._cluster.url() if self._cluster else self._postgres.url()  # type: ignore[union-attr]

    def counters(self) -> Counters:
        wire = psutil.net_io_counters(pernic=True)["lo"].bytes_sent
        times = psutil.cpu_times()
        machine = times.user + times.nice + times.system + times.irq + times.softirq
        if self._cluster:
            facts = [Redis(port=node.port).info("cpu") for node in self._cluster.nodes]
            return Counters(sum(each["used_cpu_user"] + each["used_cpu_sys"] for each in facts), machine, wire)
        assert self._postgres is not None
        mother = psutil.Process(int((self._postgres.data / "postmaster.pid").read_text().split()[0]))
        used = [process.cpu_times() for process in (mother, *mother.children())]
        return Counters(sum(each.user + each.system for each in used), machine, wire)

    def calls(self) -> float:
        """Return the number of commits or commands. A PostgreSQL session counts its last second when it ends."""
        if self._cluster:
            facts = [Redis(port=node.port).info("stats") for node in self._cluster.nodes]
            return float(sum(each["total_commands_processed"] for each in facts))
        return asyncio.run(commits(self.url))

    def stop(self) -> None:
        (self._cluster or self._postgres).stop()  # type: ignore[union-attr]


async def commits(url: str) -> float:
    connection = await asyncpg.connect(url)
    try:
        query = "select xact_commit from pg_stat_database where datname = current_database()"
        return float(await connection.fetchval(query))
    finally:
        await connection.close()


def measure(server: Server, clients: int, users: int) -> tuple[Measured, float]:
    """Let client processes work at the same time; also return the part of the cores that other programs used."""
    command = [sys.executable, "-m", "benchmarks.scale", server.url]
    processes = [
        subprocess.Popen(
            [*command, str(number * 1_000), str(users), str(SECONDS)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for number in range(clients)
    ]  # fmt: skip
    pipes: list[tuple[Any, Any]] = [(process.stdin, process.stdout) for process in processes]
    for _, output in pipes:
        assert output.readline() == "ready\n"
    before, calls = server.counters(), server.calls()
    for go, _ in pipes:
        go.write("go\n")
        go.flush()
    results = [json.loads(output.readline()) for _, output in pipes]
    after = server.counters()
    for process in processes:
        process.communicate("end\n")
    calls = server.calls() - calls
    done = sum(result[0] for result in results)
    used = Counters(*(new - old for new, old in zip(after, before, strict=True)))
    mine = sum(result[1] for result in results)
    measured = Measured(
        server.kind, server.nodes, clients, users, done / SECONDS, mine / done, used.server_cpu / done,
        used.wire / done, calls / done, sum(result[3] for result in results) / sum(result[2] for result in results),
    )  # fmt: skip
    return measured, (used.machine_cpu - used.server_cpu - mine) / SECONDS / CORES


def undisturbed(server: Server, clients: int, users: int) -> Measured:
    """Measure, and again if other programs disturbed it; return the measurement that was disturbed least."""
    found = []
    for _ in range(1 + REPEATS):
        found.append(measure(server, clients, users))
        if found[-1][1] <= OTHERS:
            break
    measured, others = min(found, key=lambda each: each[1])
    print(measured, f"(others {others:.0%})", flush=True)
    return measured


def layouts(server: Server) -> list[tuple[int, int]]:
    """Return the numbers of clients and of users of each."""
    alone = [(1, users) for users in (ALONE, *CALIBRATION) if users != USERS and server.nodes == 1]
    return alone + [(clients, USERS) for clients in CLIENTS]


def main() -> int:
    servers = [Server("Redis Cluster", nodes) for nodes in (1, 2, 3)] + [Server("PostgreSQL", 1)]
    rounds: dict[tuple[Server, int, int], list[Measured]] = {}
    try:
        # The layouts take turns: the speed of a virtual machine changes within minutes.
        for number in range(ROUNDS):
            for server in servers:
                if not number:
                    measure(server, 1, USERS)
                for clients, users in layouts(server):
                    rounds.setdefault((server, clients, users), []).append(undisturbed(server, clients, users))
    finally:
        for server in servers:
            server.stop()
    found = [middle(each) for each in rounds.values()]
    rows = compare(found)
    write_page(found, rows, spread(list(rounds.values())))
    return sum(row.missed for row in rows)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
