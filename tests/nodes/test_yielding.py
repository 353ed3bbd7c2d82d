"""Work that never suspends still lets timeouts, cancellations and Ctrl-C through."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from typing import Any

import pytest

from stepwell import pocketflow
from stepwell.nodes import BatchNode, Node, NodeFlow, linear, parallel
from stepwell.storage import MemoryStorage
from tests.until import yields


class Spins(Node):
    async def exec(self, prep_res: Any) -> None:
        pass

    def post(self, shared: Any, prep_res: Any, exec_res: Any) -> str:
        return "again"


class InlineSpins(Spins):
    def __init__(self) -> None:
        super().__init__(inline=True)

    def exec(self, prep_res: Any) -> None:  # type: ignore[override]
        pass


class Endless(BatchNode):
    def prep(self, shared: Any) -> Any:
        return iter(int, 1)

    async def exec(self, item: int) -> None:
        pass


class Stubborn(Node):
    async def exec(self, prep_res: Any) -> None:
        raise ValueError


def looping(node: Node) -> NodeFlow:
    node - "again" >> node
    return NodeFlow(start=node)


ENDLESS = {
    "async nodes": lambda: looping(Spins()),
    "inline nodes": lambda: looping(InlineSpins()),
    "nested": lambda: NodeFlow(start=looping(Spins())),
    "branches": lambda: NodeFlow(start=parallel(looping(Spins()), looping(InlineSpins()))),
    "items": lambda: linear(Endless()),
    "skipped items": lambda: linear(Endless(on_error="skip")),
    "concurrent items": lambda: linear(Endless(concurrency=3)),
    "retried items": lambda: linear(Endless(2)),
    "attempts": lambda: linear(Stubborn(10**9)),
}


@pytest.mark.parametrize("kind", ENDLESS)
async def test_a_timeout_ends_work_that_never_suspends(kind: str) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.03):
            await ENDLESS[kind]().run({})


async def test_a_timeout_ends_a_durable_run_that_never_suspends() -> None:
    async with MemoryStorage() as storage:
        flow = looping(Spins())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.03):
                await flow.run({}, storage=storage, flow_id="r")
        assert (await flow.status("r", storage=storage)).status == "running"


async def test_a_timeout_ends_a_pocketflow_loop() -> None:
    node: Any = pocketflow.AsyncNode()
    node >> node
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.03):
            await pocketflow.AsyncFlow(start=node).run_async({})


async def test_a_task_beside_it_runs() -> None:
    task = asyncio.create_task(looping(Spins()).run({}))
    await yields(20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


CODE = """
import asyncio
from stepwell.nodes import Node, NodeFlow

class Spins(Node):
    async def exec(self, prep_res):
        pass

    def post(self, shared, prep_res, exec_res):
        if "told" not in shared:
            print("began", flush=True)
        shared["told"] = True

node = Spins()
node >> node
try:
    asyncio.run(NodeFlow(start=node).run({}))
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_ctrl_c_ends_a_loop_that_never_suspends() -> None:
    with subprocess.Popen([sys.executable, "-c", CODE], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "began\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30)[0] == "interrupted\n"


def test_a_flow_without_a_loop_never_yields() -> None:
    class Counts(Node):
        def post(self, shared: Any, prep_res: Any, exec_res: Any) -> str | None:
            shared["n"] += 1
            return "again" if shared["n"] < 30_000 else None

    assert looping(Counts()).run_sync({"n": 0}) == {"n": 30_000}
