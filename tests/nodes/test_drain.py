"""A worker that is asked to stop: nodes that run end and are committed, and the next worker continues at once."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepwell import Storage, open_storage
from stepwell.errors import InvalidOption
from stepwell.nodes import BatchNode, Node, NodeFlow, linear, parallel, worker
from stepwell.record import RUNS
from tests.backends import Backend


@pytest.fixture
async def storage(backend: Backend) -> Storage:
    storage = backend.storage()
    await storage.open()
    return storage


class Counted(Node):
    """Counts its calls, and ends when it may."""

    def __init__(self, name: str, calls: list[str], **options: Any) -> None:
        super().__init__(name=name, **options)
        self.calls, self.began, self.may_end = calls, asyncio.Event(), asyncio.Event()

    async def exec(self, prep_res: Any) -> str:
        self.calls.append(self.name)
        self.began.set()
        await self.may_end.wait()
        return self.name

    def post(self, shared: Any, prep_res: Any, exec_res: Any) -> None:
        shared.setdefault("done", []).append(exec_res)


async def test_a_node_that_ends_while_the_worker_stops_is_committed_and_no_further_one_starts(storage: Storage) -> None:
    calls: list[str] = []
    first, second = Counted("first", calls), Counted("second", calls)
    flow = linear(first, second, name="f", storage=storage)
    handle = await flow.submit(flow_id="r")
    async with worker([flow]) as running:
        await first.began.wait()
        stopping = asyncio.create_task(running.stop())
        await asyncio.sleep(0)
        assert not stopping.done()
        first.may_end.set()
        await stopping
        run = await handle.status()
        assert (calls, run.node, run.interrupted) == (["first"], "second", True)
    second.may_end.set()
    async with worker([flow]):
        assert (await handle.result(timeout=5))["done"] == ["first", "second"]
    assert calls == ["first", "second"]
    # Nobody has died.
    assert run.recoveries == 0


async def test_the_end_of_the_block_waits_for_nodes_that_run(storage: Storage) -> None:
    calls: list[str] = []
    only = Counted("only", calls)
    flow = linear(only, name="f", storage=storage)
    handle = await flow.submit(keep=True)
    async with worker([flow]):
        await only.began.wait()
        asyncio.get_running_loop().call_later(0.05, only.may_end.set)
    assert await handle.result(timeout=0) == {"done": ["only"]}
    assert calls == ["only"]


async def test_a_node_that_takes_longer_than_the_drain_is_interrupted_and_runs_again(storage: Storage) -> None:
    calls: list[str] = []
    only = Counted("only", calls, max_retries=2)
    flow = linear(only, name="f", storage=storage, max_recoveries=0)
    handle = await flow.submit()
    async with worker([flow], drain=0.05):
        await only.began.wait()
    assert (await handle.status()).interrupted
    only.may_end.set()
    async with worker([flow], drain=0):
        assert await handle.result(timeout=5) == {"done": ["only"]}
    assert calls == ["only", "only"]


async def test_a_second_call_of_stop_interrupts_at_once(storage: Storage) -> None:
    calls: list[str] = []
    only = Counted("only", calls)
    flow = linear(only, name="f", storage=storage)
    handle = await flow.submit()
    async with worker([flow], drain=600) as running:
        await only.began.wait()
        stopping = asyncio.create_task(running.stop())
        await asyncio.sleep(0)
        await running.stop()
        await stopping
    assert (await handle.status()).interrupted


async def test_the_result_of_a_thread_that_ends_after_the_drain_is_committed(storage: Storage) -> None:
    began, may_end, calls = threading.Event(), threading.Event(), []

    class Slow(Node):
        def exec(self, prep_res: Any) -> str:
            calls.append(1)
            began.set()
            assert may_end.wait(20)
            return "kept"

        def post(self, shared: Any, prep_res: Any, exec_res: str) -> None:
            shared["result"] = exec_res

    flow = linear(Slow(), Node(name="next", inline=True), name="f", storage=storage)
    handle = await flow.submit()
    async with worker([flow], drain=0):
        await asyncio.to_thread(began.wait)
        asyncio.get_running_loop().call_later(0.05, may_end.set)
    assert (await handle.status()).node == "next"
    async with worker([flow]):
        assert await handle.result(timeout=5) == {"result": "kept"}
    assert calls == [1]


@pytest.mark.parametrize("on_error", ["stop", "collect", "skip"])
@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_batch_ends_its_items_that_run_and_starts_no_others(
    storage: Storage, on_error: Any, concurrency: int
) -> None:
    calls: list[int] = []
    began, may_end = asyncio.Event(), asyncio.Event()

    class Items(BatchNode):
        def prep(self, shared: Any) -> list[int]:
            return list(range(6))

        async def exec(self, item: int) -> int:
            calls.append(item)
            if len(calls) == concurrency:
                began.set()
            await may_end.wait()
            return item * 10

        def post(self, shared: Any, prep_res: Any, exec_res: list[int]) -> None:
            shared["results"] = exec_res

    flow = linear(Items(concurrency=concurrency, on_error=on_error), name="f", storage=storage)
    handle = await flow.submit()
    async with worker([flow]):
        await began.wait()
        asyncio.get_running_loop().call_soon(may_end.set)
    assert len(calls) < 6
    assert (await handle.status()).interrupted
    async with worker([flow]):
        assert await handle.result(timeout=5) == {"results": [0, 10, 20, 30, 40, 50]}
    assert sorted(calls) == [0, 1, 2, 3, 4, 5]


async def test_parallel_branches_end_their_nodes_that_run(storage: Storage) -> None:
    calls: list[str] = []
    nodes = {name: Counted(name, calls) for name in ("a1", "a2", "b1", "b2")}

    def result(name: str) -> Callable[[Any, Any, Any], None]:
        def post(shared: Any, prep_res: Any, exec_res: Any) -> None:
            shared[name] = exec_res

        return post

    for name, node in nodes.items():
        node.post = result(name)  # type: ignore[method-assign]
    branches = [linear(nodes["a1"], nodes["a2"], name="a"), linear(nodes["b1"], nodes["b2"], name="b")]
    flow = linear(parallel(*branches, name="both"), name="f", storage=storage)
    handle = await flow.submit()
    async with worker([flow]):
        await asyncio.gather(nodes["a1"].began.wait(), nodes["b1"].began.wait())
        for name in ("a1", "b1"):
            asyncio.get_running_loop().call_later(0.02, nodes[name].may_end.set)
    assert sorted(calls) == ["a1", "b1"]
    for node in nodes.values():
        node.may_end.set()
    async with worker([flow]):
        assert await handle.result(timeout=5) == {name: name for name in nodes}
    assert sorted(calls) == ["a1", "a2", "b1", "b2"]


async def test_an_idle_worker_and_one_whose_runs_wait_stop_at_once(storage: Storage) -> None:
    flow = linear(Node(name="n", inline=True), name="f", storage=storage)
    async with asyncio.timeout(5), worker([flow], drain=600) as running:
        await running.stop()


async def test_a_cancelled_run_ends_as_cancelled_while_its_worker_stops(storage: Storage) -> None:
    calls: list[str] = []
    first = Counted("first", calls)
    flow = linear(first, Node(name="second", inline=True), name="f", storage=storage)
    handle = await flow.submit()
    async with worker([flow], drain=600) as running:
        await first.began.wait()
        stopping = asyncio.create_task(running.stop())
        await asyncio.sleep(0)
        await handle.cancel("why")
        await stopping
    assert (await handle.status()).status == "cancelled"


@pytest.mark.parametrize("wrong", [{"drain": -1}, {"drain": "30"}, {"lease": 0}, {"lease": float("inf")}])
def test_wrong_seconds_are_refused(storage: Storage, wrong: dict[str, Any]) -> None:
    flow = linear(Node(name="n"), name="f", storage=storage)
    with pytest.raises(InvalidOption, match=f"{next(iter(wrong))}="):
        worker([flow], **wrong)


async def test_the_lease_of_a_worker_is_an_option(storage: Storage) -> None:
    calls: list[str] = []
    only = Counted("only", calls)
    flow = linear(only, name="f", storage=storage)
    await flow.submit(flow_id="r")
    async with worker([flow], lease=300):
        await only.began.wait()
        assert (await storage.beside(storage.address(RUNS, "r"))).remaining > 200
        only.may_end.set()


PROGRAM = """
import asyncio, sys, time

from stepwell.nodes import Node, linear, worker


class Short(Node):
    async def exec(self, prep_res):
        print("started", flush=True)
        await asyncio.sleep({seconds})


class Next(Node):
    async def exec(self, prep_res):
        print("next", flush=True)


asyncio.run(worker([linear(Short(name="short"), Next(name="next"), name="jobs", storage=sys.argv[1])]).run())
"""


@pytest.mark.parametrize("signals", [1, 2])
async def test_a_signal_drains_and_a_second_one_interrupts(tmp_path: Path, signals: int) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with open_storage(url) as storage:
        nodes = [Node(name="short", inline=True), Node(name="next", inline=True)]
        flow: NodeFlow = linear(*nodes, name="jobs", storage=storage)
        handle = await flow.submit()
        program = PROGRAM.format(seconds=0.5 if signals == 1 else 600)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program, url), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        async with asyncio.timeout(60):
            assert await process.stdout.readline() == b"started\n"
            for _ in range(signals):
                process.send_signal(signal.SIGTERM)
                await asyncio.sleep(0.1)
            output, errors = await process.communicate()
        assert (process.returncode, output) == (0, b""), errors.decode()
        run = await handle.status()
        assert (run.node, run.interrupted) == ("next" if signals == 1 else "short", True)
