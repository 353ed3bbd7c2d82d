"""The edge "error": it catches the final error of its node."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import Storage
from stepwell.errors import TooManySteps, UnknownAction
from stepwell.nodes import BatchNode, CaughtError, Node, NodeFlow, Wait, linear, parallel, step, with_error_handling
from stepwell.pocketflow import Flow as PocketFlow
from stepwell.pocketflow import Node as PocketNode
from tests.backends import Backend
from tests.nodes.flows import A, B


@pytest.fixture
async def storage(backend: Backend) -> Storage:
    storage = backend.storage()
    await storage.open()
    return storage


class Boom(Exception):
    pass


class Fails(Node):
    """Fails in the hook that it is told."""

    def __init__(self, hook: str = "exec", **options: Any) -> None:
        super().__init__(**options)
        self.hook = hook
        self.attempts: list[int] = []

    def prep(self, shared: dict[str, Any]) -> None:
        if self.hook == "prep":
            raise Boom("in prep")

    def exec(self, prep_res: Any) -> None:
        self.attempts.append(step().attempt)
        if self.hook == "exec":
            raise Boom("in exec")

    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
        if self.hook == "post":
            raise Boom("in post")


class Handler(Node):
    """Writes the error that led to it."""

    async def exec(self, prep_res: Any) -> CaughtError | None:
        return step().error

    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: CaughtError) -> None:
        shared["caught"] = tuple(exec_res)


@pytest.mark.parametrize("hook", ["prep", "exec", "post"])
async def test_the_edge_error_catches_an_error_of_each_hook(hook: str, storage: Storage) -> None:
    fails = Fails(hook, name="fails")
    fails - "error" >> Handler() >> A()
    flow = NodeFlow(start=fails)
    expected = {"caught": ("fails", "Boom", f"in {hook}"), "trail": ["A"]}
    assert await flow.run() == expected
    assert await flow.run(storage=storage) == expected


def test_the_edge_error_works_without_an_event_loop() -> None:
    fails = Fails(name="fails", inline=True)
    fails - "error" >> B()
    assert NodeFlow(start=fails).run_sync() == {"trail": ["B"]}


async def test_it_catches_the_last_attempt_only(storage: Storage) -> None:
    fails = Fails(name="fails", max_retries=3)
    fails - "error" >> Handler()
    await NodeFlow(start=fails).run(storage=storage)
    assert fails.attempts == [1, 2, 3]


async def test_without_the_edge_an_error_fails_the_run() -> None:
    fails = Fails(name="fails")
    fails - "other" >> Handler()
    with pytest.raises(Boom):
        await NodeFlow(start=fails).run()


async def test_the_edge_of_a_flow_a_batch_and_a_parallel_node_catches_the_errors_inside(storage: Storage) -> None:
    class Items(BatchNode):
        def prep(self, shared: Any) -> list[int]:
            return [1, 0]

        async def exec(self, item: int) -> float:
            return 1 / item

    for node in (NodeFlow(start=Fails, name="n"), Items(name="n"), parallel(A, Fails, name="n")):
        node - "error" >> Handler()
        flow = NodeFlow(start=node)
        kind = "ZeroDivisionError" if isinstance(node, BatchNode) else "Boom"
        for final in (await flow.run(), await flow.run(storage=storage)):
            assert final["caught"][:2] == ("n", kind)


async def test_each_branch_has_its_own_error() -> None:
    class Name(Node):
        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
            shared[self.name] = caught.message if (caught := step().error) else None

    def branch(name: str, hook: str) -> Node:
        fails = Fails(hook)
        handler = Name(name=name)
        fails - "error" >> handler
        fails >> handler
        return fails

    final = await linear(parallel(branch("a", "exec"), branch("b", "post"), branch("c", ""))).run()
    assert final == {"a": "in exec", "b": "in post", "c": None}


async def test_the_handler_of_a_resumed_run_still_knows_the_error(storage: Storage) -> None:
    fails = Fails(name="fails")
    fails - "error" >> Wait("go") >> Handler()
    flow = NodeFlow(start=fails, storage=storage, keep=60)
    parked = await flow.run(flow_id="r", on_park="return")
    assert (await flow.status("r")).errors[0].type == "Boom"
    assert not isinstance(parked, dict)
    assert (await flow.resume("r", "yes"))["caught"] == ("fails", "Boom", "in exec")
    assert fails.attempts == [1]


async def test_an_error_of_the_graph_and_a_cancellation_are_not_caught() -> None:
    lost = A("nowhere")
    lost - "error" >> B()
    with pytest.raises(UnknownAction):
        await NodeFlow(start=lost).run()
    again = A()
    again >> again
    inner = NodeFlow(start=again, max_steps=3)
    inner - "error" >> B()
    with pytest.raises(TooManySteps):
        await NodeFlow(start=inner).run()

    class Hangs(Node):
        async def exec(self, prep_res: Any) -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise Boom from None

    started = asyncio.Event()
    hangs = Hangs()
    hangs - "error" >> B()
    task = asyncio.ensure_future(NodeFlow(start=hangs).run(shared := {}))
    await started.wait()
    task.cancel()
    with pytest.raises((asyncio.CancelledError, Boom)):
        await task
    assert shared == {}


async def test_a_failed_commit_is_not_an_error_of_the_node(storage: Storage) -> None:
    class Bad(Node):
        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
            shared["bad"] = object()

    bad, last = Bad(), A()
    bad >> last
    bad - "error" >> B()
    with pytest.raises(TypeError, match="bad"):
        await NodeFlow(start=bad).run(storage=storage)


async def test_with_error_handling_catches_the_error_of_each_node() -> None:
    assert await with_error_handling([A, Fails], B).run() == {"trail": ["A", "B"]}


def test_the_flows_of_pocketflow_do_not_catch_errors() -> None:
    class Raises(PocketNode):
        def exec(self, prep_res: Any) -> None:
            raise Boom

    raises = Raises()
    raises - "error" >> PocketNode()
    with pytest.raises(Boom):
        PocketFlow(start=raises).run({})
