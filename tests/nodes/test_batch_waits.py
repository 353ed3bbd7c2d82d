"""Items of a durable batch that run other runs, which wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from stepwell import Storage
from stepwell.nodes import BatchNode, NodeFlow, Wait, linear, parallel, step, worker
from tests.backends import Backend
from tests.constants import Constants
from tests.nodes.test_durable import Boom
from tests.nodes.test_mail import finished
from tests.nodes.test_wait import parked
from tests.until import until


@pytest.fixture
async def storage(backend: Backend) -> Storage:
    storage = backend.storage()
    await storage.open()
    return storage


class Review(BatchNode):
    """Runs a flow for each item; the odd ones wait for an answer."""

    def __init__(self, inner: NodeFlow, ran: list[int], **options: Any) -> None:
        super().__init__(name="review", **options)
        self.inner = inner
        self.ran = ran

    def prep(self, shared: dict[str, Any]) -> Any:
        return range(4)

    async def exec(self, item: int) -> Any:
        self.ran.append(item)
        if item % 2 == 0:
            return item
        final = await self.inner.run({"item": item}, flow_id=f"{step().flow_id}-{item}", if_exists="resume", keep=True)
        return final["ok"]

    def post(self, shared: dict[str, Any], items: Any, results: list[Any]) -> None:
        shared["results"] = results


def reviews(storage: Storage, ran: list[int], **options: Any) -> tuple[NodeFlow, NodeFlow]:
    inner = linear(Wait("ok"), name="inner", storage=storage)
    return linear(Review(inner, ran, **options), name="outer", storage=storage, keep=True), inner


@pytest.mark.parametrize("options", [{}, {"concurrency": 4}, {"on_error": "skip"}, {"max_retries": 3}])
async def test_items_that_wait_do_not_fail_the_batch(storage: Storage, options: dict[str, Any]) -> None:
    ran: list[int] = []
    flow, inner = reviews(storage, ran, **options)
    wait = await parked(flow.run(flow_id="r"))
    assert (wait.node, wait.id, wait.deadline is None) == ("review", "", False)
    assert sorted(ran) == [0, 1, 2, 3]
    run = await flow.status("r")
    assert (run.status, run.progress["review"], run.errors) == ("sleeping", (2, 4), ())
    await inner.answer("r-1", "one", run=True)
    ran.clear()
    await parked(flow.resume("r"))
    # Only the items that wait run again.
    assert sorted(ran) == [1, 3]
    assert (await flow.status("r")).progress["review"] == (3, 4)
    await inner.answer("r-3", "three", run=True)
    assert await flow.resume("r") == {"results": [0, "one", 2, "three"]}


async def test_a_worker_continues_a_batch_whose_items_wait(storage: Storage, constants: Constants) -> None:
    constants(rechecks=(0.05, 0.1))
    flow, inner = reviews(storage, [])
    async with worker([flow, inner]):
        await flow.submit(flow_id="r")

        async def both_wait() -> bool:
            return len([run async for run in inner.runs("parked")]) == 2

        await until(both_wait)
        await asyncio.gather(inner.answer("r-1", "one"), inner.answer("r-3", "three"))
        assert await finished(flow) == {"results": [0, "one", 2, "three"]}
    assert (await flow.status("r")).errors == ()


async def test_the_error_of_another_item_comes_first(storage: Storage) -> None:
    problems = [Boom("broken")]

    class Broken(Review):
        async def exec(self, item: int) -> Any:
            if item == 2 and problems:
                raise problems.pop()
            return await super().exec(item)

    inner = linear(Wait("ok"), name="inner", storage=storage)
    flow = linear(Broken(inner, []), name="outer", storage=storage)
    with pytest.raises(Boom):
        await flow.run(flow_id="r")
    assert (await flow.status("r")).status == "failed"
    await parked(flow.resume("r"))
    for item in (1, 3):
        await inner.answer(f"r-{item}", item, run=True)
    assert await flow.resume("r") == {"results": [0, 1, 2, 3]}


async def test_a_batch_that_waits_beside_a_wait(storage: Storage) -> None:
    inner = linear(Wait("ok"), name="inner", storage=storage)
    flow = NodeFlow(start=parallel(Review(inner, []), Wait("x")), storage=storage)
    wait = await parked(flow.run(flow_id="r"))
    assert wait.id
    await parked(flow.answer(wait.id, 5, run=True))
    for item in (1, 3):
        await inner.answer(f"r-{item}", item, run=True)
    assert await flow.resume("r") == {"results": [0, 1, 2, 3], "x": 5}


@pytest.mark.parametrize("act", [lambda flow: flow.pause("r"), lambda flow: flow.cancel("r")], ids=["pause", "cancel"])
async def test_a_batch_that_waits_can_be_paused_and_cancelled(storage: Storage, act: Callable[[NodeFlow], Any]) -> None:
    flow, inner = reviews(storage, [])
    await parked(flow.run(flow_id="r"))
    await act(flow)
    if (await flow.status("r")).status == "paused":
        for item in (1, 3):
            await inner.answer(f"r-{item}", item, run=True)
        assert await flow.resume("r") == {"results": [0, 1, 2, 3]}
    else:
        assert (await flow.status("r")).status == "cancelled"
