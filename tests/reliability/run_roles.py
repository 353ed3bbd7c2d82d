"""The flows of the tests of runs, and the roles of the workers that run them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

from stepwell import Storage
from stepwell.errors import Conflict, Parked, RunFinished
from stepwell.nodes import BatchNode, Node, NodeFlow, Wait, linear, parallel, step
from stepwell.nodes.run import journal, lease
from stepwell.storage import Apply, Release

Report = Callable[..., None]

ITEMS = 200
#: The lease of a runner, in seconds; longer than the delays on a busy machine.
LEASE = 1.5
#: Workers resume a run that has not committed for this many seconds.
WATCH = 1.0
START = {"n": 7, "ran": []}


class Work(Node):
    """A node that records its run in the shared state and in the log."""

    def __init__(self, report: Report, name: str, seconds: float = 0.0) -> None:
        super().__init__(name=name)
        self.report = report
        self.seconds = seconds

    async def exec(self, prep_res: Any) -> str:
        self.report("ran", step().node)
        await asyncio.sleep(self.seconds)
        return step().id

    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: str) -> None:
        shared[f"by {self.name}"] = [exec_res, shared["n"]]


class Count(Work):
    """A node that increments a number of the shared state, so that a second run is detected."""

    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: str) -> None:
        shared["n"] += 1
        shared["ran"] = [*shared["ran"], exec_res]


class Squares(BatchNode):
    def __init__(self, report: Report, seconds: float = 0.0) -> None:
        super().__init__(name="squares", concurrency=4)
        self.report = report
        self.seconds = seconds

    def prep(self, shared: dict[str, Any]) -> Any:
        self.report("ran", "squares.prep")
        shared["prepared"] = shared.get("prepared", 0) + 1
        return (number + shared["n"] for number in range(ITEMS))

    async def exec(self, item: int) -> int:
        self.report("item", item)
        await asyncio.sleep(self.seconds)
        return item * item

    def post(self, shared: dict[str, Any], items: list[int], results: list[int]) -> None:
        shared["squares"] = sum(results)


class Approve(Wait):
    def prep(self, shared: dict[str, Any]) -> Any:
        return f"is {shared['squares']} right?"

    def post(self, shared: dict[str, Any], question: Any, answer: Any) -> Any:
        shared["approved"] = [question, answer]
        return answer


def long_flow(storage: Storage, report: Report, seconds: float = 0.0) -> NodeFlow:
    """Return a flow of twelve nodes: a nested flow, a batch, branches, a wait."""
    nested = linear(Count(report, "b"), Count(report, "c"), name="nested")
    branches = parallel(
        linear(Work(report, "e", seconds), Work(report, "f", seconds), name="left"),
        linear(Work(report, "g", seconds), Work(report, "h", seconds), name="right"),
        name="branches",
    )
    approve = Approve("approve")
    flow = linear(Count(report, "a", seconds), nested, Squares(report, seconds / 20), Count(report, "d", seconds),
                  branches, approve, name="long", storage=storage, keep=True)  # fmt: skip
    last = linear(Count(report, "i", seconds), Count(report, "j", seconds), name="last")
    return flow.connect(approve, last, "yes")


def branchy_flow(storage: Storage, report: Report) -> NodeFlow:
    """Return a flow with branches in branches, with waits, a batch and a nested flow."""
    inner = parallel(
        linear(Work(report, "p"), Wait("x"), Work(report, "q"), name="one"),
        linear(Squares(report), Work(report, "r"), name="two"),
        name="inner",
    )
    outer = parallel(
        linear(Work(report, "s"), inner, Work(report, "t"), name="left"),
        linear(Wait("y"), Work(report, "u"), name="right"),
        linear(Work(report, "v"), Work(report, "w"), name="third"),
        name="outer",
    )
    return linear(Count(report, "a"), outer, Count(report, "z"), name="branchy", storage=storage, keep=True)


async def run_to_the_end(flow: NodeFlow, flow_id: str) -> dict[str, Any]:
    """Start or resume a run, answer its waits, and return its final state."""
    work = flow.run({**START}, flow_id=flow_id, if_exists="resume")
    while True:
        try:
            return await work
        except Parked as parked:
            work = flow.resume(parked.id, "yes")


async def run_and_die(storage: Storage, report: Report, *, flow_id: str, at: int, during: float | None = None) -> None:
    """Run the long flow, and kill this process after its n-th commit, or ``during`` seconds after sending it."""
    lease.LEASE = LEASE
    journal.WATCH = WATCH
    perform, commits = storage.perform, 0

    async def counted(operation: Any) -> Any:
        nonlocal commits
        if not isinstance(operation, Apply):
            return await perform(operation)
        commits += 1
        if commits == at and during is not None:
            asyncio.get_running_loop().call_later(during, os.kill, os.getpid(), signal.SIGKILL)
        result = await perform(operation)
        if commits == at and during is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    storage.perform = counted  # type: ignore[method-assign]
    final = await run_to_the_end(long_flow(storage, report), flow_id)
    report("final", commits, final)


async def run_beside_others(storage: Storage, report: Report, *, flow_id: str, seconds: float) -> None:
    """Run a run that other processes run too, and report how it ended here."""
    lease.LEASE = LEASE
    perform = storage.perform

    async def watched(operation: Any) -> Any:
        result = await perform(operation)
        if isinstance(operation, Apply):
            report("committed", result.version.number)
        assert not isinstance(operation, Release) or result is None
        return result

    storage.perform = watched  # type: ignore[method-assign]
    flow = long_flow(storage, report, seconds)
    while True:
        try:
            final = await run_to_the_end(flow, flow_id)
        except RunFinished:
            report("too late")
        except Conflict as lost:
            report("lost", type(lost).__name__, getattr(lost, "__notes__", []))
        else:
            report("final", final)
        return
