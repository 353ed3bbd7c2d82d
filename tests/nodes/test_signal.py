"""Signals: sent to a run by name, before or after it gets to a wait for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import Storage
from stepwell.errors import InvalidOption, RunCancelled, RunFinished, UnknownRun, Unstorable
from stepwell.nodes import END, NodeFlow, Wait, linear, parallel, worker
from stepwell.record import RUNS
from stepwell.testing import Clock
from tests.backends import Backend
from tests.nodes.test_cancel import begun
from tests.nodes.test_durable import Boom, Say
from tests.nodes.test_mail import Gate, HeldPark, finished, parts_of
from tests.nodes.test_wait import parked


@pytest.fixture
async def storage(backend: Backend) -> Storage:
    storage = backend.storage()
    await storage.open()
    return storage


async def test_a_signal_continues_a_run_that_waits_for_it(storage: Storage) -> None:
    flow = linear(Wait("paid", signal="payment"), storage=storage, keep=True)
    await parked(flow.run(flow_id="r"))
    async with worker([flow]):
        await flow.signal("r", "payment", {"amount": 7})
        assert await finished(flow) == {"paid": {"amount": 7}}
    assert await parts_of(storage) == set()


async def test_signals_that_come_first_are_used_in_their_order_and_once(storage: Storage) -> None:
    gate = Gate()
    flow = linear(gate, *(Wait(f"n{number}", signal="n") for number in range(3)), Wait("last"), storage=storage)
    running = await begun(flow, gate)
    for number in range(4):
        await flow.signal("r", "n", number)
    gate.opened.set()
    wait = await parked(running)
    assert wait.node == "last"
    assert await flow.answer(wait.id, "end", run=True) == {"n0": 0, "n1": 1, "n2": 2, "last": "end"}


async def test_a_run_that_gets_a_signal_before_its_wait_does_not_park(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    flow = linear(gate, Say([], "a"), Wait("x", signal="go"), storage=storage)
    running = await begun(flow, gate)
    await flow.signal("r", "go", 1)
    held = HeldPark(storage, monkeypatch)
    gate.opened.set()
    assert await running == {"said": ["a"], "x": 1}
    assert held.count == 0


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_signal_around_the_park_commit_is_not_lost(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    flow = linear(Wait("x", signal="go"), storage=storage, keep=True)

    async def send() -> None:
        await flow.signal("r", "go", 1)

    HeldPark(storage, monkeypatch, **{when: send})  # type: ignore[arg-type]
    if when == "before":
        assert await flow.run(flow_id="r") == {"x": 1}
    else:
        await parked(flow.run(flow_id="r"))
        async with worker([flow]):
            assert await finished(flow) == {"x": 1}


async def test_two_waits_for_one_signal_take_one_each(storage: Storage) -> None:
    both = parallel(Wait("left", signal="go"), Wait("right", signal="go"))
    flow = NodeFlow(start=both, storage=storage)
    await parked(flow.run(flow_id="r"))
    await flow.signal("r", "go", 1)
    await parked(flow.resume("r"))
    await flow.signal("r", "go", 2)
    final = await flow.resume("r")
    assert sorted(final.values()) == [1, 2]


async def test_a_wait_for_a_signal_can_be_answered_too(storage: Storage) -> None:
    flow = linear(Wait("x", signal="go"), storage=storage)
    wait = await parked(flow.run(flow_id="r"))
    assert await flow.answer(wait.id, 1, run=True) == {"x": 1}


async def test_a_signal_for_another_wait_wakes_nobody_for_long(storage: Storage) -> None:
    flow = linear(Wait("x"), Wait("y", signal="go"), storage=storage, keep=True)
    wait = await parked(flow.run(flow_id="r"))
    await flow.signal("r", "go", 2)
    assert (await parked(flow.resume("r"))).id == wait.id
    assert await storage.due(RUNS) == []
    assert await flow.answer(wait.id, 1, run=True) == {"x": 1, "y": 2}


async def test_a_signal_is_used_again_if_its_node_fails(storage: Storage) -> None:
    problems = [Boom()]

    class Picky(Wait):
        def post(self, shared: dict[str, Any], question: Any, answer: Any) -> None:
            if problems:
                raise problems.pop()
            shared["got"] = answer

    gate = Gate()
    flow = linear(gate, Say([], "a"), Picky("x", signal="go"), storage=storage)
    running = await begun(flow, gate)
    await flow.signal("r", "go", 1)
    gate.opened.set()
    with pytest.raises(Boom):
        await running
    assert await flow.resume("r") == {"said": ["a"], "got": 1}


@pytest.mark.parametrize("late", [False, True])
async def test_a_signal_counts_if_it_was_sent_before_the_timeout(backend: Backend, clock: Clock, late: bool) -> None:
    storage = backend.storage(clock=clock)
    await storage.open()
    first = Wait("x", timeout=60, signal="go")
    second = Wait("y", signal="go")
    flow = NodeFlow(start=first, storage=storage).connect(first, second, "timeout").connect(first, END)
    await parked(flow.run(flow_id="r"))
    clock.advance(61 if late else 59)
    await flow.signal("r", "go", 1)
    clock.advance(10)
    # A signal that is too late for one wait is used by the next.
    assert await flow.resume("r") == ({"y": 1} if late else {"x": 1})


async def test_a_signal_reaches_a_run_in_every_status_that_has_not_ended(storage: Storage) -> None:
    flow = linear(Say([], "a", fails=[Boom()]), Wait("x", signal="go"), storage=storage)
    with pytest.raises(UnknownRun):
        await flow.signal("r", "go")
    with pytest.raises(Boom):
        await flow.run(flow_id="r")
    await flow.signal("r", "go", 1)
    assert (await flow.status("r")).status == "failed"
    assert await flow.resume("r") == {"said": ["a"], "x": 1}
    with pytest.raises(RunFinished):
        await flow.signal("r", "go")
    await parked(flow.run(flow_id="c"))
    await flow.pause("c")
    await flow.signal("c", "go", 1)
    assert (await flow.status("c")).status == "paused"
    await flow.cancel("c")
    with pytest.raises(RunCancelled):
        await flow.signal("c", "go")


async def test_a_queued_run_keeps_its_signals(storage: Storage) -> None:
    flow = linear(Wait("x", signal="go"), storage=storage)
    handle = await flow.submit(flow_id="r")
    await flow.signal("r", "go", 1)
    async with worker([flow]):
        assert await handle.result(20) == {"x": 1}


async def test_many_signals_at_once_are_all_used(storage: Storage) -> None:
    flow = linear(*(Wait(f"n{number}", signal="n") for number in range(10)), storage=storage, keep=True)
    await parked(flow.run(flow_id="r"))
    async with worker([flow]):
        await asyncio.gather(*(flow.signal("r", "n", number) for number in range(10)))
        assert sorted((await finished(flow)).values()) == list(range(10))


async def test_names_and_values_of_signals_are_checked(storage: Storage) -> None:
    for wrong in ("", 1):
        with pytest.raises(InvalidOption, match="signal"):
            Wait("x", signal=wrong)  # type: ignore[arg-type]
    flow = linear(Wait("x", signal="go"), storage=storage)
    await parked(flow.run(flow_id="r"))
    with pytest.raises(InvalidOption, match="signal"):
        await flow.signal("r", "")
    with pytest.raises(Unstorable, match=r"^to run 'r': the signal\[0\] \(object\)"):
        await flow.signal("r", "go", [object()])
