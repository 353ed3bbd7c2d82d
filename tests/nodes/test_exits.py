"""Nodes that raise ``SystemExit`` and similar exceptions, and notes on errors that pass through many runs."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stepwell.errors import NodeExited, WorkCancelled
from stepwell.nodes import BatchNode, Failed, Node, NodeFlow, linear, parallel
from stepwell.storage import MemoryStorage


class Bye(BaseException):
    pass


class Leaves(Node):
    """Raises in the hook ``where``."""

    def __init__(self, where: str, error: BaseException, **options: Any) -> None:
        super().__init__(**options)
        self.where, self.error = where, error

    def prep(self, shared: Any) -> None:
        self.leave("prep")

    def exec(self, prep_res: Any) -> None:
        self.leave("exec")

    def post(self, shared: Any, prep_res: Any, exec_res: Any) -> None:
        self.leave("post")

    def leave(self, hook: str) -> None:
        if hook == self.where:
            raise self.error


class AsyncLeaves(Leaves):
    async def exec(self, prep_res: Any) -> None:  # type: ignore[override]
        self.leave("exec")


class LeavingItems(BatchNode):
    error: BaseException = SystemExit(7)

    def prep(self, shared: Any) -> Any:
        return range(4)

    def exec(self, item: int) -> int:
        if item == 2:
            raise self.error
        return item

    def post(self, shared: Any, prep_res: Any, exec_res: Any) -> None:
        shared["results"] = [None if isinstance(result, Failed) else result for result in exec_res]


class AsyncLeavingItems(LeavingItems):
    async def exec(self, item: int) -> int:  # type: ignore[override]
        return LeavingItems.exec(self, item)


async def fails(flow: NodeFlow) -> None:
    async with MemoryStorage() as storage:
        with pytest.raises(NodeExited) as caught:
            await flow.run({}, storage=storage, flow_id="r")
        run = await flow.status("r", storage=storage)
        assert (run.status, run.errors[0].type) == ("failed", "NodeExited")
        assert type(caught.value.__cause__).__name__ in run.errors[0].traceback


@pytest.mark.parametrize("error", [SystemExit(2), Bye(), GeneratorExit()], ids=repr)
@pytest.mark.parametrize("where", ["prep", "exec", "post"])
@pytest.mark.parametrize("kind", [Leaves, AsyncLeaves])
async def test_a_node_that_exits_fails_its_durable_run(kind: type[Leaves], where: str, error: BaseException) -> None:
    await fails(linear(kind(where, error, max_retries=3)))


async def test_a_branch_that_exits_fails_its_durable_run() -> None:
    await fails(NodeFlow(start=parallel(Leaves("exec", SystemExit()), AsyncLeaves("never", Bye()))))


async def test_a_hook_of_the_flow_that_exits_fails_its_durable_run() -> None:
    class Exits(NodeFlow):
        def post(self, shared: Any, prep_res: Any, exec_res: Any) -> None:
            sys.exit()

    await fails(Exits(start=Node()))


async def test_a_keyboard_interrupt_in_a_thread_fails_the_durable_run() -> None:
    await fails(linear(Leaves("exec", KeyboardInterrupt())))


@pytest.mark.parametrize("kind", [LeavingItems, AsyncLeavingItems])
@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("error", [SystemExit(7), GeneratorExit()], ids=repr)
async def test_an_item_that_exits_fails(
    kind: type[LeavingItems], concurrency: int, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LeavingItems, "error", error)
    await fails(linear(kind(concurrency=concurrency)))
    async with MemoryStorage() as storage:
        state = await linear(kind(concurrency=concurrency, on_error="skip")).run({}, storage=storage)
    assert state == {"results": [0, 1, None, 3]}


async def test_an_item_that_exits_in_another_process_fails() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        await fails(linear(LeavingItems(executor=pool)))


async def test_a_run_without_a_storage_raises_the_exit() -> None:
    with pytest.raises(Bye):
        await linear(AsyncLeaves("exec", Bye())).run({})
    with pytest.raises(SystemExit):
        linear(Leaves("exec", SystemExit(2))).run_sync({})


async def test_a_cancelled_run_has_not_failed() -> None:
    began = asyncio.Event()

    class Hangs(Node):
        async def exec(self, prep_res: Any) -> None:
            began.set()
            await asyncio.Event().wait()

    async with MemoryStorage() as storage:
        flow = linear(Hangs, storage=storage)
        task = asyncio.create_task(flow.run({}, flow_id="r"))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await flow.status("r")).status == "running"


@pytest.mark.parametrize("kind", ["node", "branch", "item", "nested"])
async def test_a_run_whose_coroutine_is_closed_has_not_failed(kind: str) -> None:
    began = asyncio.Event()

    class Hangs(Node):
        async def exec(self, prep_res: Any) -> None:
            began.set()
            await asyncio.Event().wait()

    class HangingItems(BatchNode):
        def prep(self, shared: Any) -> Any:
            return range(4)

        exec = Hangs.exec  # type: ignore[assignment]

    nodes = {"node": Hangs, "branch": parallel(Hangs, Hangs), "item": HangingItems, "nested": linear(Hangs)}
    async with MemoryStorage() as storage:
        flow = linear(nodes[kind], storage=storage)
        running = flow.run({}, flow_id="r")
        # Like a task, which then never gets another turn.
        while not began.is_set():
            running.send(None)
            await asyncio.sleep(0)
        running.close()
        run = await flow.status("r")
        assert (run.status, run.errors) == ("running", ())
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)


CTRL_C = """
import asyncio, sys, time
from stepwell.nodes import Node, linear

class Slow(Node):
    async def exec(self, prep_res):
        print("began", flush=True)
        {wait}

url = "sqlite:///" + sys.argv[1]
flow = linear(Slow, name="slow")
try:
    {run}
except KeyboardInterrupt:
    print(asyncio.run(flow.status("r", storage=url)).status)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
@pytest.mark.parametrize(
    ("run", "wait"),
    [
        ('asyncio.run(flow.run({}, storage=url, flow_id="r"))', "await asyncio.sleep(60)"),
        ('flow.run_sync({}, storage=url, flow_id="r")', "await asyncio.sleep(60)"),
        (
            'asyncio.new_event_loop().run_until_complete(flow.run({}, storage=url, flow_id="r"))',
            "[time.sleep(0.01) for _ in range(6000)]",
        ),
    ],
)
def test_ctrl_c_interrupts_a_durable_run_without_failing_it(tmp_path: Path, run: str, wait: str) -> None:
    code = CTRL_C.format(run=run, wait=wait)
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "f.db")], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "began\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30)[0] == "running\n"


async def test_an_error_that_passes_through_many_runs_gets_one_note() -> None:
    class Recurses(Node):
        async def exec(self, prep_res: Any) -> None:
            await flow.run({})

    flow = linear(Recurses)
    with pytest.raises(RecursionError) as caught:
        await flow.run({})
    assert len(caught.value.__notes__) == 1


async def test_an_error_that_many_items_raise_has_few_notes() -> None:
    error = WorkCancelled("all")

    class Same(BatchNode):
        def prep(self, shared: Any) -> Any:
            return range(1000)

        async def exec(self, item: int) -> None:
            raise error

    with pytest.raises(ExceptionGroup):
        await linear(Same(on_error="collect")).run({})
    assert len(error.__notes__) <= 10
