"""The cost of an update by component, on Redis Cluster and PostgreSQL, with several nodes and client processes.

The costs of one client and one server calibrate a simulation. Its predictions for the other layouts are compared with
what is measured, and must be within 20 %. Writes ``docs/scale.md``.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from typing import Any, NamedTuple

import asyncpg
import psutil
from redis import Redis
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisCluster

from benchmarks.redis import whole_updates
from benchmarks.scale_page import write_page
from benchmarks.scale_simulation import Costs, Layout, simulate

SECONDS = float(os.environ.get("SECONDS", "3"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
USERS = 50
#: The most that a prediction may differ from what is measured.
ERROR = 0.20
CORES = os.cpu_count() or 1


class Measured(NamedTuple):
    """An update in one layout: seconds of CPU time, bytes, and calls of the server."""

    kind: str
    nodes: int
    clients: int
    users: int
    rate: float
    client_cpu: float
    server_cpu: float
    wire: float
    #: Commits (PostgreSQL) or commands (Redis) of an update.
    calls: float


async def work(url: str, first: int, users: int, seconds: float) -> None:
    """Update the records of these users until the time is over; print the count, and the CPU time."""
    update, close = whole_updates(url)
    await asyncio.gather(*(update(first + user) for user in range(users)))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    end, done, cpu = time.perf_counter() + seconds, 0, time.process_time()

    async def user(number: int) -> None:
        nonlocal done
        while time.perf_counter() < end:
            await update(number)
            done += 1

    await asyncio.gather(*(user(first + number) for number in range(users)))
    print(json.dumps([done, time.process_time() - cpu]), flush=True)
    # The counters of the server are read first: a session that ends takes its CPU time with it.
    await asyncio.to_thread(sys.stdin.readline)
    await close()


class Server:
    """A Redis Cluster or a PostgreSQL server, and its counters."""

    def __init__(self, kind: str, nodes: int) -> None:
        self.kind, self.nodes = kind, nodes
        self._cluster = RedisCluster(masters=nodes, replicas=0) if kind == "Redis Cluster" else None
        self._postgres = None if self._cluster else PostgresServer(durable=True).start()

    @property
    def url(self) -> str:
        return self._cluster.url() if self._cluster else self._postgres.url()  # type: ignore[union-attr]

    def counters(self) -> tuple[float, float, float]:
        """Return the CPU time of the server, the bytes on the loopback interface, and its commits or commands."""
        wire = psutil.net_io_counters(pernic=True)["lo"].bytes_sent
        if self._cluster:
            cpu, calls = 0.0, 0.0
            for node in self._cluster.nodes:
                facts = Redis(port=node.port).info()
                cpu += facts["used_cpu_user"] + facts["used_cpu_sys"]
                calls += facts["total_commands_processed"]
            return cpu, wire, calls
        assert self._postgres is not None
        mother = psutil.Process(int((self._postgres.data / "postmaster.pid").read_text().split()[0]))
        times = [process.cpu_times() for process in (mother, *mother.children())]
        cpu = sum(each.user + each.system for each in times)
        return cpu, wire, asyncio.run(commits(self._postgres.url()))

    def stop(self) -> None:
        (self._cluster or self._postgres).stop()  # type: ignore[union-attr]


async def commits(url: str) -> float:
    connection = await asyncpg.connect(url)
    try:
        query = "select xact_commit from pg_stat_database where datname = current_database()"
        return float(await connection.fetchval(query))
    finally:
        await connection.close()


def measure(server: Server, clients: int, users: int) -> Measured:
    """Let client processes work at the same time."""
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
    before = server.counters()
    for go, _ in pipes:
        go.write("go\n")
        go.flush()
    results = [json.loads(output.readline()) for _, output in pipes]
    after = server.counters()
    for process in processes:
        process.communicate("end\n")
    done = sum(result[0] for result in results)
    cpu, wire, calls = ((new - old) / done for new, old in zip(after, before, strict=True))
    mine = sum(result[1] for result in results) / done
    return Measured(server.kind, server.nodes, clients, users, done / SECONDS, mine, cpu, wire, calls)


def middle(found: list[Measured]) -> Measured:
    """Return the round with the median rate."""
    return sorted(found, key=lambda each: each.rate)[len(found) // 2]


def calibrated(alone: Measured, many: Measured, two: Measured, layout: Layout) -> Costs:
    """Divide the measured costs into those of operations and of batches.

    With one user each operation is a batch. With many users, the simulation says how large the batches are, and the
    division is repeated with that. ``two``: two clients, which show how the CPU time grows with the processes.
    """
    growth = (two.client_cpu + two.server_cpu) / (many.client_cpu + many.server_cpu)
    sharing = max(0.0, growth - 1) / layout._replace(clients=2).doublings
    size = 10.0
    for _ in range(10):
        # An update has two operations.
        client_batch = max(0.0, (alone.client_cpu - many.client_cpu) / 2 / (1 - 1 / size))
        server_batch = max(0.0, (alone.server_cpu - many.server_cpu) / 2 / (1 - 1 / size))
        client, server = many.client_cpu / 2 - client_batch / size, many.server_cpu / 2 - server_batch / size
        delay = max(0.0, 1 / alone.rate / 2 - (alone.client_cpu + alone.server_cpu) / 2)
        costs = Costs(max(client, 1e-6), client_batch, max(server, 1e-6), server_batch, delay, sharing)
        size = max(1.5, simulate(costs, layout).batch)
    return costs


def main() -> int:
    found: list[Measured] = []
    for kind, nodes in (("Redis Cluster", 1), ("Redis Cluster", 2), ("Redis Cluster", 3), ("PostgreSQL", 1)):
        server = Server(kind, nodes)
        try:
            measure(server, 1, USERS)
            for clients, users in ((1, 1), (1, USERS), (2, USERS), (4, USERS)):
                if users == USERS or nodes == 1:
                    found.append(middle([measure(server, clients, users) for _ in range(ROUNDS)]))
                    show(found[-1])
        finally:
            server.stop()
    missed, rows = 0, []
    for kind in ("Redis Cluster", "PostgreSQL"):
        ours = [each for each in found if each.kind == kind]
        alone = next(each for each in ours if each.users == 1)
        many, two = (
            next(each for each in ours if (each.nodes, each.clients, each.users) == (1, clients, USERS))
            for clients in (1, 2)
        )
        shape = {"lanes": 1} if kind == "Redis Cluster" else {"lanes": 4, "own_threads": True}
        costs = calibrated(alone, many, two, Layout(1, 1, USERS, CORES, **shape))  # type: ignore[arg-type]
        for each in ours:
            if each.users == USERS:
                layout = Layout(each.clients, each.nodes, USERS, CORES, **shape)  # type: ignore[arg-type]
                predicted = simulate(costs, layout).rate
                error = predicted / each.rate - 1
                rows.append((each, predicted, error))
                missed += abs(error) > ERROR
                late = "   MISSED" if abs(error) > ERROR else ""
                print(f"{kind:14} {each.nodes} nodes {each.clients} clients: predicted {predicted:8,.0f}, "
                      f"measured {each.rate:8,.0f}: {error:+.0%}{late}")  # fmt: skip
    write_page(found, rows)
    return missed


def show(each: Measured) -> None:
    print(f"{each.kind:14} {each.nodes} nodes {each.clients} clients {each.users:2} users: {each.rate:8,.0f} a second, "
          f"client {each.client_cpu * 1e6:5.0f} us, server {each.server_cpu * 1e6:5.0f} us, {each.wire:6,.0f} bytes, "
          f"{each.calls:5.2f} calls", flush=True)  # fmt: skip


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
