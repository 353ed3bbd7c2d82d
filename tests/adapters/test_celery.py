"""Submitted runs in two Celery workers over a real broker; the one that holds a run is killed."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stepwell.errors import InvalidOption, RunFailed
from stepwell.nodes import Node, NodeFlow, linear
from stepwell.nodes.engine import QueuedRun, RunTasks
from stepwell.nodes.run import journal, lease
from stepwell.record import RUNS
from stepwell.storage import MemoryStorage
from tests.constants import Constants
from tests.servers.process import Process, free_port
from tests.servers.redis import RedisServer
from tests.until import until


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Process]]:
    server = RedisServer()
    monkeypatch.setenv("STEPWELL_TEST_FOLDER", str(tmp_path))
    monkeypatch.setenv("STEPWELL_TEST_BROKER", server.url())
    started: list[Process] = []

    def start(*command: str) -> Process:
        log = tmp_path / f"{len(started)}.log"
        whole = [sys.executable, "-W", "ignore", "-m", "celery", "-A", "tests.adapters.celery_app", *command]
        started.append(Process(whole, log))
        return started[-1]

    yield start
    for process in started:
        end(process)
    server.stop()


def end(process: Process) -> None:
    """Kill a process with the processes of its pool, like the end of its machine."""
    if process.running:
        # It leads a session of its own.
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def test_the_adapter_exports_just_this_name() -> None:
    assert importlib.import_module("stepwell.adapters.celery").__all__ == ["CeleryRuns"]


def test_wrong_options_are_refused() -> None:
    adapter: Any = importlib.import_module("stepwell.adapters.celery")
    celery: Any = importlib.import_module("celery")
    app, flow = celery.Celery("none"), linear(Node, name="a")
    for flows, options in (([], {}), ([flow, linear(Node, name="a")], {}), ([flow], {"sweep": 0})):
        with pytest.raises(InvalidOption):
            adapter.CeleryRuns(app, flows, storage="memory://", **options)
    memories = [linear(Node, name=name, storage="memory://") for name in "ab"]
    with pytest.raises(InvalidOption, match=r"give CeleryRuns\(\.\.\., storage=\.\.\.\)"):
        adapter.CeleryRuns(app, memories)
    adapter.CeleryRuns(app, [linear(Node, name=name, storage="sqlite:///runs.db") for name in "ab"])
    with pytest.raises(InvalidOption, match="'b' is not one of the flows"):
        adapter.CeleryRuns(app, [flow], storage="memory://").submit_sync(linear(Node, name="b"))


async def test_a_run_is_stored_when_the_broker_is_unavailable(caplog: pytest.LogCaptureFixture) -> None:
    adapter: Any = importlib.import_module("stepwell.adapters.celery")
    celery: Any = importlib.import_module("celery")
    app = celery.Celery("none", broker=f"amqp://127.0.0.1:{free_port()}//")
    app.conf.broker_transport_options = {"max_retries": 0}
    async with MemoryStorage() as storage:
        flow = linear(Node, name="a", storage=storage)
        handle = await adapter.CeleryRuns(app, [flow]).submit(flow, {})
        assert (await handle.status()).status == "queued"
    assert "a sweep sends it" in caplog.text


class Sent:
    """A task queue whose tasks are collected, and run by the test."""

    def __init__(self, flow: NodeFlow) -> None:
        self.runs = RunTasks([flow], None, self._send, user="Sent")
        self.tasks: list[str] = []

    async def _send(self, run: QueuedRun) -> None:
        self.tasks.append(run.flow_id)

    async def sweep(self) -> None:
        async for run in self.runs.ready():
            await self._send(run)

    async def run(self, most: int) -> list[str]:
        """Run up to ``most`` tasks, and return the outcomes in the order of the tasks."""
        outcomes: list[str] = []
        while self.tasks and len(outcomes) < most:
            outcomes.append(await self.runs.run("f", self.tasks.pop(0)))
        return outcomes


async def test_runs_with_a_long_node_cause_no_endless_tasks(constants: Constants) -> None:
    constants(watch=0.0)
    opened = asyncio.Event()

    class Long(Node):
        async def exec(self, prep_res: Any) -> None:
            await opened.wait()

    async with MemoryStorage() as storage:
        flow = linear(Long, name="f", storage=storage)
        busy = [asyncio.create_task(flow.run(flow_id=f"r{number}")) for number in range(2)]
        await until(lambda: storage.due(RUNS), lambda due: len(due) >= 2)
        sent = Sent(flow)
        # A sweep sends their tasks, because their runner may have died.
        await sent.sweep()
        assert await sent.run(50) == ["busy", "busy"]
        opened.set()
        await asyncio.gather(*busy)


@pytest.mark.parametrize("revision", [1, 100])
async def test_a_sweep_reads_each_list_once_whatever_the_number_of_revisions(
    monkeypatch: pytest.MonkeyPatch, revision: int
) -> None:
    read: list[str] = []
    async with MemoryStorage() as storage:

        def record(name: str) -> None:
            call = getattr(storage, name)

            def recorded(*args: Any, **options: Any) -> Any:
                read.append(name)
                return call(*args, **options)

            monkeypatch.setattr(storage, name, recorded)

        for name in ("due", "queued", "queues", "page"):
            record(name)
        flow = NodeFlow(start=Node(inline=True), name="f", storage=storage, revision=revision)
        await Sent(flow).sweep()
    assert sorted(read) == ["due", "queued", "queues"]


async def test_the_end_of_a_run_sends_the_task_of_the_next_one_of_its_partition() -> None:
    async with MemoryStorage() as storage:
        flow = linear(Node(inline=True), name="f", storage=storage)
        handles = [await flow.submit(partition="p") for _ in range(3)]
        sent = Sent(flow)
        sent.tasks.append(handles[0].id)
        assert await sent.run(50) == ["finished"] * 3
        for handle in handles:
            assert (await handle.status()).status == "finished"


async def found(folder: Path, pattern: str, count: int) -> list[list[str]]:
    paths = await until(lambda: sorted(folder.glob(pattern)), lambda paths: len(paths) >= count)
    return [path.name.split(".") for path in paths]


async def test_celery_workers_run_submitted_runs_and_one_of_them_is_killed(
    tmp_path: Path, start: Callable[..., Process], constants: Constants
) -> None:
    # The module sets them for its workers. They must not stay in this process.
    constants(lease=lease.LEASE, watch=journal.WATCH)
    worker = ["worker", "--concurrency", "1", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    workers = [start(*worker, "--hostname", f"{name}@test") for name in "ab"]
    start("beat", "--schedule", str(tmp_path / "beat"), "--pidfile=")
    shop: Any = importlib.import_module("tests.adapters.celery_app")
    submit = shop.celery_runs.submit
    held = [await submit(shop.orders, {}, flow_id=f"order-{n}") for n in range(2)]
    holders = await found(tmp_path, "*.hold.*", 2)
    # Each worker has one run. Further runs wait for them.
    partitioned = [await submit(shop.quick, {}, flow_id=f"quick-{n}", partition="p") for n in range(3)]
    asked = await submit(shop.asks, {}, flow_id="ask")
    failed = await submit(shop.fails, {}, flow_id="fail")
    alone = await shop.quick.submit({}, flow_id="alone", storage=shop.celery_runs.storage)

    end(workers[0])
    (tmp_path / "gate").touch()
    async with asyncio.timeout(60):
        for handle in (*held, *partitioned, alone):
            assert await handle.result() == {"ended": True}
        with pytest.raises(RunFailed, match="no luck"):
            await failed.result()
        await until(asked.status, lambda run: run.status == "parked")
        await asked.answer("Ada")
        shop.celery_runs.send(shop.asks, "ask")
        assert await asked.result() == {"name": "Ada", "ended": True}

    # The killed worker held one of the runs: another process ran its node again, and not the node before it.
    again = await found(tmp_path, "*.hold.*", 3)
    (revived,) = {run for run, _, pid in again if [run, "hold", pid] not in holders}
    assert len(await found(tmp_path, f"{revived}.begin.*", 1)) == 1
    order = (tmp_path / "order").read_text().split()
    assert [run for run in order if run.startswith("quick")] == ["quick-0", "quick-1", "quick-2"]
    assert sorted(order) == sorted({"order-0", "order-1", "quick-0", "quick-1", "quick-2", "ask", "alone"})
    await shop.celery_runs.storage.close()
