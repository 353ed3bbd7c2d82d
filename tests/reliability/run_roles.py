"""The long flow that the tests of runs kill, and what a worker can be told to do with it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

from stepwell import Storage
from stepwell.errors import Conflict, Parked, RunFinished
from stepwell.nodes import BatchNode, Node, NodeFlow, Wait, linear, parallel, step
from stepwell.nodes.engine import journal, runs
from stepwell.storage import Apply, Release

Tell = Callable[..., None]

ITEMS = 200
#: A dead runner's claim; longer than the hiccups of a busy machine.
LEASE = 1.5
#: Workers look after a run that has not committed for so long.
WATCH = 1.0
START = {"n": 7, "ran": []}


class Work(Node):
    """Notes that it ran, in the shared state and in the log."""

    def __init__(self, tell: Tell, name: str, seconds: float = 0.0) -> None:
        super().__init__(name=name)
        self.tell = tell
        self.seconds = seconds

    async def exec(self, prep_res: Any) -> str:
        self.tell("ran", step().node)
        await asyncio.sleep(self.seconds)
        return step().id

    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: str) -> None:
        shared[f"by {self.name}"] = [exec_res, shared["n"]]


class Count(Work):
    """Changes what others have written: run twice, it would count twice."""

    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: str) -> None:
        shared["n"] += 1
        shared["ran"] = [*shared["ran"], exec_res]


class Squares(BatchNode):
    def __init__(self, tell: Tell, seconds: float = 0.0) -> None:
        super().__init__(name="squares", concurrency=4)
        self.tell = tell
        self.seconds = seconds

    def prep(self, shared: dict[str, Any]) -> Any:
        self.tell("ran", "squares.prep")
        shared["prepared"] = shared.get("prepared", 0) + 1
        return (number + shared["n"] for number in range(ITEMS))

    async def exec(self, item: int) -> int:
        self.tell("item", item)
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


def long_flow(storage: Storage, tell: Tell, seconds: float = 0.0) -> NodeFlow:
    """Twelve nodes: a nested flow, a batch, branches, a wait."""
    nested = linear(Count(tell, "b"), Count(tell, "c"), name="nested")
    branches = parallel(
        linear(Work(tell, "e", seconds), Work(tell, "f", seconds), name="left"),
        linear(Work(tell, "g", seconds), Work(tell, "h", seconds), name="right"),
        name="branches",
    )
    approve = Approve("approve")
    flow = linear(Count(tell, "a", seconds), nested, Squares(tell, seconds / 20), Count(tell, "d", seconds),
                  branches, approve, name="long", storage=storage, keep=True)  # fmt: skip
    last = linear(Count(tell, "i", seconds), Count(tell, "j", seconds), name="last")
    return flow.connect(approve, last, "yes")


def branchy_flow(storage: Storage, tell: Tell) -> NodeFlow:
    """Branches in branches, each with something to come back to: waits, a batch, a nested flow."""
    inner = parallel(
        linear(Work(tell, "p"), Wait("x"), Work(tell, "q"), name="one"),
        linear(Squares(tell), Work(tell, "r"), name="two"),
        name="inner",
    )
    outer = parallel(
        linear(Work(tell, "s"), inner, Work(tell, "t"), name="left"),
        linear(Wait("y"), Work(tell, "u"), name="right"),
        linear(Work(tell, "v"), Work(tell, "w"), name="third"),
        name="outer",
    )
    return linear(Count(tell, "a"), outer, Count(tell, "z"), name="branchy", storage=storage, keep=True)


async def run_to_the_end(flow: NodeFlow, flow_id: str) -> dict[str, Any]:
    """Whatever it takes: start it, go on with it, answer it."""
    work = flow.run({**START}, flow_id=flow_id, if_exists="resume")
    while True:
        try:
            return await work
        except Parked as parked:
            work = flow.resume(parked.id, "yes")


async def run_and_die(storage: Storage, tell: Tell, *, flow_id: str, at: int, during: float | None = None) -> None:
    """Run the long flow, and kill this process after its n-th commit, or so many seconds after sending it."""
    runs.LEASE = LEASE
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
    final = await run_to_the_end(long_flow(storage, tell), flow_id)
    tell("final", commits, final)


async def run_beside_others(storage: Storage, tell: Tell, *, flow_id: str, seconds: float) -> None:
    """Be one of several runners of one run; say how it ended here."""
    runs.LEASE = LEASE
    perform = storage.perform

    async def watched(operation: Any) -> Any:
        result = await perform(operation)
        if isinstance(operation, Apply):
            tell("committed", result.version.number)
        assert not isinstance(operation, Release) or result is None
        return result

    storage.perform = watched  # type: ignore[method-assign]
    flow = long_flow(storage, tell, seconds)
    while True:
        try:
            final = await run_to_the_end(flow, flow_id)
        except RunFinished:
            tell("too late")
        except Conflict as lost:
            tell("lost", type(lost).__name__, getattr(lost, "__notes__", []))
        else:
            tell("final", final)
        return
