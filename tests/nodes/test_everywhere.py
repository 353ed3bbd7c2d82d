"""A limit of a flow over all workers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import Storage
from stepwell.errors import InvalidOption
from stepwell.nodes import Limit, NodeFlow, Wait, worker
from stepwell.record import RATES, RUNS
from stepwell.testing import Clock
from tests.backends import Backend
from tests.constants import Constants
from tests.nodes.test_queue import Log, results
from tests.nodes.test_submit import parked
from tests.until import until


@pytest.fixture
async def storage(backend: Backend) -> Storage:
    storage = backend.storage()
    await storage.open()
    return storage


async def entries(storage: Storage, flow: str) -> Any:
    data = await storage.get_data(RATES, (flow, "everywhere")) or {}
    return data.get("runs", {})


@pytest.mark.every_backend
async def test_all_workers_together_run_so_many_at_once(shared_backend: Backend) -> None:
    url = shared_backend.place()
    node = Log()
    flows = [NodeFlow(node, name="limited", storage=shared_backend.storage(url)) for _ in range(2)]

    async def during(name: str) -> None:
        # Both workers would start more.
        await asyncio.sleep(0.01)

    node.during = during
    handles = [await flows[0].submit({"name": str(number)}) for number in range(12)]
    limits = {"limited": Limit(everywhere=2)}
    async with worker([flows[0]], limits=limits), worker([flows[1]], limits=limits):
        await results(handles)
    assert node.seen.most == 2
    assert len(node.seen.started) == 12
    assert flows[0].storage is not None
    assert await entries(flows[0].storage, "limited") == {}


async def test_a_waiting_run_leaves_its_place_to_another(storage: Storage) -> None:
    flow = NodeFlow(Wait("answer"), name="asking", storage=storage)
    first, second = [await flow.submit(flow_id=each) for each in "ab"]
    async with worker([flow], limits={flow: Limit(everywhere=1)}):
        await parked(first)
        await parked(second)
        await first.answer("yes")
        assert await first.result(timeout=60) == {"answer": "yes"}


async def test_the_place_of_a_dead_worker_is_free_again(backend: Backend, clock: Clock, constants: Constants) -> None:
    constants(limit_checked_every=0.01)
    storage = backend.storage(clock=clock)
    await storage.open()
    node = Log()
    flow = NodeFlow(node, name="limited", storage=storage)
    gone, waiting = (storage.address(RUNS, each).key for each in ("gone", "waiting"))
    await flow.submit({"name": "late"}, flow_id="waiting", after=3600)
    await storage.set_data(RATES, ("limited", "everywhere"), {"runs": {gone: ["w", clock()], waiting: ["w", clock()]}})
    handle = await flow.submit({"name": "a"})
    async with worker([flow], limits={flow: Limit(everywhere=2)}):
        await until(lambda: storage.get_data(RATES, ("limited", "everywhere")), lambda data: data.get("waiting"))
        assert node.seen.started == []
        clock.advance(11)
        await handle.result(timeout=60)


async def test_a_rate_and_a_limit_hold_together(storage: Storage) -> None:
    node = Log()
    flow = NodeFlow(node, name="limited", storage=storage)
    handles = [await flow.submit({"name": str(number)}) for number in range(6)]
    async with worker([flow], limits={flow: Limit(everywhere=2, rate=(3, 0.2))}):
        await results(handles)
    assert node.seen.most <= 2


@pytest.mark.parametrize("everywhere", [0, -1, 1.5, True, "5"])
def test_a_limit_must_be_a_number_of_runs(everywhere: Any) -> None:
    with pytest.raises(InvalidOption, match="everywhere="):
        Limit(everywhere=everywhere)
