"""Logs that several processes append to lose nothing, keep the order and have no entry twice."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from itertools import count
from typing import Any

import pytest

from stepwell import Log, LogEntry, Storage, open_storage
from tests.backends import Backend
from tests.reliability.dose import dose, seeded
from tests.reliability.log_roles import KEY
from tests.reliability.workers import Worker, Workers
from tests.servers import postgres
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer, the_server


def check(found: list[LogEntry], workers: list[Worker]) -> int:
    """Check all acknowledged entries, and return how many there are."""
    values = [tuple(entry.value) for entry in found]
    assert len(set(values)) == len(values), "an entry is there twice"
    assert [entry.number for entry in found] == list(range(1, len(found) + 1))
    acknowledged = [line[1:] for worker in workers for line in worker.reported("appended")]
    for number, value in acknowledged:
        assert values[number - 1] == tuple(value)
    orders: dict[Any, list[int]] = {}
    for *writer, number in values:
        orders.setdefault(tuple(writer), []).append(number)
    for writer, order in orders.items():
        assert order == list(range(len(order))), writer
    return len(acknowledged)


async def test_processes_that_append_to_one_log_lose_nothing(shared_backend: Backend, workers: Workers) -> None:
    url = shared_backend.place()
    each = dose("APPENDS", 10, 2000)
    started = [workers.start("append", url, name=str(n), tasks=3, each=each, lease=10.0) for n in range(3)]
    log = Log(shared_backend.storage(url), "bot", KEY)
    followed: list[LogEntry] = []

    async def follow() -> None:
        async with aclosing(log.follow()) as entries:
            async for entry in entries:
                if entry.value == "end":
                    return
                followed.append(entry)

    following = asyncio.create_task(follow())
    for worker in started:
        await worker.wait_for("done", timeout=120)
    await log.append("end")
    async with asyncio.timeout(30):
        await following
    assert check(followed, started) == len(followed) >= 3 * 3 * each
    assert followed == (await log.read())[:-1]


async def test_killed_processes_lose_no_acknowledged_entry(
    shared_backend: Backend, storage: Storage, url: str, workers: Workers
) -> None:
    choose = seeded()
    log = Log(storage, "bot", KEY)
    names = iter(range(1_000_000))

    def start() -> Worker:
        return workers.start("append", url, name=str(next(names)), tasks=2, each=0, lease=0.5)

    running = [start(), start()]
    killed: list[Worker] = []
    for _ in range(dose("LOG_KILLS", 4, 500)):
        for worker in running:
            await worker.wait_for("appended")
        await asyncio.sleep(choose.uniform(0, 0.05))
        await running[0].kill()
        killed.append(running.pop(0))
        running.append(start())
    for worker in running:
        await worker.wait_for("appended")
        await worker.kill()
    await shared_backend.settled()
    found = await log.read()
    assert len(found) >= check(found, killed + running) > 0
    assert await log.append(("last", 0, 0)) == range(len(found) + 1, len(found) + 2)


def place(kind: str, port: int, name: str) -> str:
    if kind == "postgres":
        return f"postgresql://postgres@127.0.0.1:{port}/postgres?schema={name}&sslmode=disable"
    return f"redis://127.0.0.1:{port}/0?prefix={name}"


@pytest.fixture(params=["postgres", "redis"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def own_server(kind: str) -> Iterator[Any]:
    server: Any = PostgresServer().start() if kind == "postgres" else RedisServer("--appendonly", "yes")
    yield server
    server.stop()


async def test_a_follower_continues_after_the_server_was_killed(kind: str, own_server: Any) -> None:
    url = place(kind, own_server.port, "logs")
    # The follower itself survives outages that are longer than the patience of its storage.
    async with open_storage(url, patience=30) as writer, open_storage(url, patience=0.1) as reader:
        log = Log(writer, "bot", KEY)
        seen: list[int] = []
        enough = asyncio.Event()

        async def follow() -> None:
            async for entry in Log(reader, "bot", KEY).follow():
                seen.append(entry.number)
                if entry.value == "last":
                    enough.set()

        following = asyncio.create_task(follow())
        await log.append(*range(10))
        await asyncio.to_thread(own_server.kill if kind == "postgres" else own_server.process.kill)
        await asyncio.sleep(0.5)
        await asyncio.to_thread(own_server.start)
        await log.append(*range(10), "last")
        async with asyncio.timeout(30):
            await enough.wait()
        following.cancel()
        assert seen == list(range(1, 22))


@pytest.fixture
async def through(kind: str) -> AsyncIterator[tuple[Proxy, Storage]]:
    port = postgres.shared().port if kind == "postgres" else the_server().port
    name = f"logs{uuid.uuid4().hex[:16]}"
    async with Proxy(port, seed=7) as proxy:
        # The lane gives up at once, so that the log has to find out whether its write was applied.
        url = place(kind, proxy.port, name)
        async with open_storage(url, patience=0.01, timeout=1.0, sweep_every=None, notices=False) as storage:
            yield proxy, storage


async def test_an_append_without_an_answer_is_not_written_twice(through: tuple[Proxy, Storage]) -> None:
    proxy, storage = through
    logs = [Log(storage, "bot", key) for key in range(4)]
    for log in logs:
        await log.append("first")
    proxy.cut_rate, cuts = 0.3, dose("CUT_APPENDS", 30, 1000)
    unknown: set[Any] = set()
    acknowledged: dict[Log, dict[int, Any]] = {log: {} for log in logs}

    async def write(log: Log, task: int) -> None:
        for number in count():
            if proxy.cuts >= cuts:
                return
            value = (task, number)
            try:
                (entry,) = await log.append(value)
                acknowledged[log][entry] = value
            except OSError:
                unknown.add((log, value))

    await asyncio.gather(*(write(log, task) for log in logs for task in range(3)))
    proxy.cut_rate = 0.0
    for log in logs:
        found = dict(await log.read(after=1))
        assert len(set(found.values())) == len(found), "an entry is there twice"
        for number, value in acknowledged[log].items():
            assert found[number] == value
        assert {(log, value) for value in found.values()} <= {
            *((log, value) for value in acknowledged[log].values()),
            *unknown,
        }
    print(f"{proxy.cuts} cuts, {len(unknown)} unknown outcomes of {sum(map(len, acknowledged.values()))}")


async def test_a_write_that_arrives_late_is_not_written_twice(through: tuple[Proxy, Storage]) -> None:
    proxy, storage = through
    log = Log(storage, "bot", KEY)
    await log.append("first")
    proxy.hold_what = b"the value"
    assert await log.append("the value") == range(2, 3)
    await proxy.let_through()
    assert await log.append("next") == range(3, 4)
    assert [entry.value for entry in await log.read()] == ["first", "the value", "next"]
