"""The simulation behind the page about scale makes the batches of the library, and shares cores."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable
from functools import partial
from uuid import uuid4

import pytest
from benchmarks.redis import whole_updates
from benchmarks.scale import count_batches
from benchmarks.scale_model import ALONE, CALIBRATION, MANY, Measured, calibrated
from benchmarks.scale_simulation import Costs, Layout
from benchmarks.scale_simulation import simulate as simulated

from stepwell.record import Address
from stepwell.storage.redis.wire import tag_of
from tests.servers.redis import RedisCluster, the_cluster

US = 1e-6
COSTS = Costs(20 * US, 120 * US, 15 * US, 80 * US)
simulate = partial(simulated, seconds=0.5, times=2)


async def test_the_users_of_a_node_share_one_batch_as_in_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr("stepwell.storage.contract.Storage.observers", [partial(count_batches, sizes)])
    update, close = whole_updates(the_cluster().url(f"?prefix={uuid4().hex}"))
    # Users of one hash tag have one node.
    numbers = [number for number in range(2_000) if tag_of(Address("bench", f"({number},{number})")) == 0][:12]
    await asyncio.gather(*map(update, numbers))
    sizes.clear()
    await asyncio.gather(*(_repeat(update, number) for number in numbers))
    await close()
    assert {*sizes} == {12}
    assert simulate(COSTS, Layout(1, 3, 36, 2)).batch == pytest.approx(12, rel=0.05)


async def test_the_users_of_the_only_node_have_two_lanes_as_in_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr("stepwell.storage.contract.Storage.observers", [partial(count_batches, sizes)])
    cluster = RedisCluster(1, replicas=0)
    try:
        update, close = whole_updates(cluster.url())
        await asyncio.gather(*map(update, range(50)))
        sizes.clear()
        await asyncio.gather(*(_repeat(update, number) for number in range(50)))
        await close()
    finally:
        cluster.stop()
    assert statistics.median(sizes) == pytest.approx(25, abs=5)
    assert simulate(COSTS, Layout(1, 1, 50, 2)).batch == pytest.approx(25, abs=1)


async def _repeat(update: Callable[[int], Awaitable[None]], number: int) -> None:
    for _ in range(5):
        await update(number)


def test_a_client_and_its_only_node_work_at_the_same_time() -> None:
    operation = COSTS.client_operation + COSTS.client_batch / 25
    assert simulate(COSTS, Layout(1, 1, 50, 2)).rate == pytest.approx(1 / operation / 2, rel=0.05)


def test_a_process_that_sleeps_needs_time_to_wake() -> None:
    awake = simulate(COSTS, Layout(1, 1, 1, 2)).rate
    slow = COSTS._replace(client_wake=50 * US, server_wake=30 * US)
    # Two operations, each of which wakes both.
    assert 1 / simulate(slow, Layout(1, 1, 1, 2)).rate == pytest.approx(1 / awake + 160 * US, rel=0.03)


def test_more_nodes_let_the_client_work_all_the_time() -> None:
    operation = COSTS.client_operation + COSTS.client_batch / (50 / 3)
    assert simulate(COSTS, Layout(1, 3, 50, 4)).rate == pytest.approx(1 / operation / 2, rel=0.06)


def test_many_processes_keep_the_cores_busy_and_cost_more() -> None:
    operation = COSTS.client_operation + COSTS.server_operation + (COSTS.client_batch + COSTS.server_batch) / (50 / 3)
    assert simulate(COSTS, Layout(4, 3, 50, 2)).rate == pytest.approx(2 / operation / 2, rel=0.05)
    dearer = COSTS._replace(sharing=1 / 6)
    assert simulate(dearer, Layout(4, 3, 50, 2)).rate == pytest.approx(2 / operation / 1.5 / 2, rel=0.05)


def test_three_processes_on_two_cores_wait_for_each_other() -> None:
    """Two clients of one node would keep two cores busy if a woken process always found the idle core."""
    operation = COSTS.client_operation + COSTS.server_operation + (COSTS.client_batch + COSTS.server_batch) / 25
    assert simulate(COSTS, Layout(2, 1, 50, 2)).rate < 0.9 * 2 / operation / 2
    assert simulate(COSTS, Layout(2, 1, 50, 3)).rate > 1.1 * 2 / operation / 2


def test_checks_for_waiters_divide_the_batches_of_postgresql() -> None:
    before = simulate(COSTS, Layout(1, 1, 50, 2, split=True), seconds=0.24).batch
    after = simulate(COSTS, Layout(1, 1, 50, 2, split=True), seconds=1.0).batch
    assert before > 20 > after > 8


def test_the_calibration_finds_the_costs() -> None:
    costs = COSTS._replace(client_wake=40 * US, server_wake=30 * US, sharing=0.1)
    measured: Callable[[int, int], Measured] = partial(_measured, costs)
    found = calibrated([*(measured(1, users) for users in (ALONE, *CALIBRATION)), measured(MANY, 50)])
    assert found == pytest.approx(costs)


def _measured(costs: Costs, clients: int, users: int) -> Measured:
    growth = 1 + costs.sharing * (clients - 1)
    client = 2 * growth * (costs.client_operation + costs.client_batch / users)
    server = 2 * growth * (costs.server_operation + costs.server_batch / users)
    if users == ALONE:
        client, server = client + 2 * costs.client_wake, server + 2 * costs.server_wake
    return Measured("Redis Cluster", 1, clients, users, 1.0, client, server, 0.0, 0.0, users)
