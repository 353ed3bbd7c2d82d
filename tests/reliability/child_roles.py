"""The flows of the tests of child runs, and the role of the worker that runs them."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from typing import Any

from stepwell import Storage
from stepwell.nodes import ChildMap, Node, NodeFlow, linear, parallel, step, worker
from stepwell.nodes.queue import children
from stepwell.nodes.run import table
from tests.reliability.control_roles import Report, Take
from tests.reliability.queue_roles import hurry


class Work(Node):
    """Adds to a number, after a moment in which its process may be killed."""

    def prep(self, shared: dict[str, Any]) -> Any:
        return shared["n"]

    async def exec(self, n: int) -> int:
        await asyncio.sleep(0.01)
        return n + 1

    def post(self, shared: dict[str, Any], n: int, more: int) -> None:
        shared["n"] = more


class One(Node):
    """Starts two children, and waits for both."""

    def __init__(self, flow: NodeFlow, name: str) -> None:
        super().__init__(name=name)
        self.flow = flow

    def prep(self, shared: dict[str, Any]) -> Any:
        shared["begun"] = [*shared.get("begun", []), self.name]
        return shared["n"]

    async def exec(self, n: int) -> list[int]:
        handles = [await step().child(self.flow, {"n": n + more}, id=str(more)) for more in (10, 20)]
        return [(await handle.result())["n"] for handle in handles]

    def post(self, shared: dict[str, Any], n: int, results: list[int]) -> None:
        shared[str(self.name)] = results
        del shared["begun"]


class Many(ChildMap):
    def prep(self, shared: dict[str, Any]) -> Any:
        return [{"n": 100 * number} for number in range(4)]

    def post(self, shared: dict[str, Any], items: Any, finals: Any) -> None:
        shared["many"] = [final["n"] for final in finals]


def families(storage: Storage) -> list[NodeFlow]:
    """Return a flow whose runs have children that wait, and children with children; and the flows of those."""
    # In a large dose, the worker of a run dies more often than is usual for a run that harms no worker.
    options: dict[str, Any] = {"storage": storage, "max_recoveries": 1000}
    short = linear(Work, name="short_child", **options)
    asking = linear(Take("go"), Work, name="asking_child", **options)
    middle = linear(One(short, "inner"), Work, name="middle_child", **options)
    sides = parallel(One(asking, "left"), One(middle, "right"), name="sides")
    top = linear(sides, Many(short, concurrency=2, name="many"), name="family", keep=True, **options)
    return [top, middle, asking, short]


def undisturbed(n: int) -> dict[str, Any]:
    """Return the final state of a run that nothing disturbs."""
    return {"n": n, "left": [n + 11, n + 21], "right": [n + 11, n + 21], "many": [1, 101, 201, 301]}


def die_sometimes(function: Callable[..., Any], probability: float) -> Callable[..., Any]:
    """Return the function, which kills its process now and then, before or after its work."""

    async def dying(*args: Any) -> Any:
        draw = random.random()
        if draw < probability / 2:
            os.kill(os.getpid(), signal.SIGKILL)
        result = await function(*args)
        if draw < probability:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return dying


async def child_worker(storage: Storage, report: Report, *, probability: float = 0.0) -> None:
    """Run the runs of these flows until this process is killed, also while it reports the end of a child."""
    hurry()
    table.REPORT = 0.3  # type: ignore[misc]
    children.report = die_sometimes(children.report, probability)
    async with worker(families(storage)):
        report("works")
        await asyncio.Event().wait()
