"""The history of runs: their nodes, times, actions and waits."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell import MemoryStorage, Storage
from stepwell.errors import InvalidOption, UnknownRun, UsageError
from stepwell.nodes import ChildMap, Node, NodeFlow, RunHandle, RunHistory, Sleep, Wait, linear, parallel, step, worker
from stepwell.record import RUNS
from stepwell.storage import Apply, Get
from stepwell.testing import Clock
from tests.backends import Backend
from tests.nodes.flows import A, B
from tests.nodes.test_durable import Watching
from tests.until import until


@pytest.fixture
async def storage(backend: Backend) -> Storage:
    storage = backend.storage()
    await storage.open()
    return storage


class Turn(Node):
    """Runs a number of times."""

    def __init__(self, times: int) -> None:
        super().__init__(name="turn", inline=True)
        self.times = times
        self >> self

    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> str | None:
        shared["n"] = shared.get("n", 0) + 1
        return "done" if shared["n"] >= self.times else None


def turning(times: int, *, last: Any = B, **options: Any) -> NodeFlow:
    turn = Turn(times)
    turn - "done" >> (last() if isinstance(last, type) else last)
    return NodeFlow(start=turn, name="turning", **options)


def of(history: RunHistory) -> list[tuple[str, int | None, str | None]]:
    return [(entry.node, entry.visit, entry.action) for entry in history]


@pytest.mark.every_backend
async def test_a_history_has_every_node_in_order_with_its_visit_and_its_action(storage: Storage) -> None:
    flow = turning(45, storage=storage, keep=60)
    await flow.run(flow_id="r")
    history = await flow.history("r")
    turns = [("turn", visit, "default") for visit in range(1, 45)]
    assert of(history) == [*turns, ("turn", 45, "done"), ("B", 1, "default")]
    assert history.dropped == 0
    assert await RunHandle("r", flow, storage).history() == history
    times = [entry.started_at for entry in history]
    assert times == sorted(times)


async def test_the_attempts_and_a_caught_error_are_in_the_history(storage: Storage) -> None:
    class Fails(Node):
        def exec(self, prep_res: Any) -> None:
            raise ValueError("not today")

    fails = Fails(max_retries=3)
    fails - "error" >> A()
    flow = NodeFlow(start=fails, storage=storage, keep=60)
    await flow.run(flow_id="r")
    caught, _ = await flow.history("r")
    assert (caught.attempts, caught.action, caught.error) == (3, "error", ("ValueError", "not today"))


async def test_the_history_costs_no_further_operation_and_one_part_each_twenty_nodes(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching = Watching(storage, monkeypatch)
    await turning(45).run(storage=storage)
    with_history = watching.kinds()
    parts = [set(each.change.parts) for each in watching.operations if isinstance(each, Apply) and each.change.parts]
    assert parts[1:3] == [{"history::000000000"}, {"history::000000001"}]
    watching.operations.clear()
    await turning(45, history=None).run(storage=storage)
    assert watching.kinds() == with_history


async def test_the_oldest_nodes_are_dropped_and_counted(storage: Storage) -> None:
    flow = turning(1090, storage=storage, keep=60)
    await flow.run(flow_id="r")
    history = await flow.history("r")
    assert (len(history), history.dropped) == (1011, 80)
    assert (history[0].visit, history[-2].visit) == (81, 1090)


async def test_a_wait_of_80_seconds_shows_80_seconds_and_who_has_answered() -> None:
    clock = Clock()
    flow = linear(A, Wait("approve"), B, name="asks", storage=MemoryStorage(clock=clock), keep=600)
    await flow.run(flow_id="r", on_park="return")
    clock.advance(80)
    assert await flow.answer("r", "yes", by="ann")
    clock.advance(5)
    await flow.resume("r")
    first, wait, last = await flow.history("r")
    assert (wait.node, round(wait.waited), round(wait.duration), wait.answered_by) == ("approve", 85, 85, "ann")
    assert round(wait.started_at - first.started_at) == 0
    assert round(last.started_at - wait.started_at) == 85
    assert (first.waited, last.waited) == (0, 0)


async def test_an_answer_that_continues_the_run_here_names_who_has_answered(storage: Storage) -> None:
    flow = linear(Wait("approve"), storage=storage, keep=60)
    await flow.run(flow_id="r", on_park="return")
    await flow.answer("r", "yes", run=True, by="ann")
    assert (await flow.history("r"))[0].answered_by == "ann"


async def test_a_sleep_and_the_time_in_the_queue_and_in_a_pause_are_in_the_history() -> None:
    clock = Clock()
    flow = linear(A, Sleep(30, name="nap"), Wait("go"), B, name="late", storage=MemoryStorage(clock=clock), keep=600)
    handle = await flow.submit(flow_id="r")
    clock.advance(7)
    async with worker([flow]):
        await until(handle.status, lambda run: run.status == "sleeping")
        clock.advance(30)
        await until(handle.status, lambda run: run.status == "parked")
    await flow.pause("r")
    clock.advance(11)
    await flow.resume("r", "yes")
    a, nap, wait, _ = await flow.history("r")
    assert (round(a.queued), round(nap.slept), round(wait.paused)) == (7, 30, 11)
    assert (round(nap.waited), round(nap.duration)) == (0, 30)


async def test_two_waits_side_by_side_have_their_own_times() -> None:
    clock = Clock()
    flow = linear(parallel(Wait("x"), Wait("y")), storage=MemoryStorage(clock=clock), keep=600)
    await flow.run(flow_id="r", on_park="return")
    waits = {wait.node.rpartition("/")[2]: wait.id for wait in (await flow.status("r")).waits}
    clock.advance(10)
    await flow.answer(waits["x"], 1)
    try:
        await flow.resume("r")
    except BaseException as parked:
        assert type(parked).__name__ == "Parked"
    clock.advance(20)
    await flow.resume(waits["y"], 1)
    waited = {entry.node.rpartition("/")[2]: round(entry.waited) for entry in await flow.history("r")}
    assert (waited["x"], waited["y"]) == (10, 30)


async def test_a_node_that_waits_for_children_shows_how_long(storage: Storage) -> None:
    class Two(Node):
        async def exec(self, prep_res: Any) -> None:
            for name in ("first", "second"):
                await (await step().child(child, id=name)).result()

    class Many(ChildMap):
        def prep(self, shared: Any) -> list[int]:
            return [1, 2]

    child = linear(Sleep(0.2), name="child", storage=storage)
    flow = linear(Two(), Many(child), name="parent", storage=storage)
    async with worker([flow, child]):
        handle = await flow.submit(flow_id="r")
        await handle.result(timeout=60)
    two, many = await flow.history("r")
    assert two.waited >= 0.4
    assert many.waited >= 0.2


async def test_the_history_of_a_cancelled_run_stays(storage: Storage) -> None:
    flow = turning(25, last=Wait("go"), storage=storage)
    await flow.run(flow_id="r", on_park="return")
    before = await flow.history("r")
    assert len(before) == 25
    await flow.cancel("r")
    assert await flow.history("r") == before


async def test_a_resumed_run_goes_on_with_its_history(storage: Storage) -> None:
    flow = linear(*[A(name=f"a{number}") for number in range(19)], Wait("go"), B, storage=storage, keep=60)
    await flow.run(flow_id="r", on_park="return")
    await flow.resume("r", "yes")
    assert [entry.node for entry in await flow.history("r")] == [*[f"a{number}" for number in range(19)], "go", "B"]
    stored = await storage.perform(Get(storage.address(RUNS, "r"), parts=True))
    assert set(stored.parts) == {"history::000000000"}


async def test_without_a_history_the_last_nodes_are_known(storage: Storage) -> None:
    flow = linear(A, B, storage=storage, keep=60, history=None)
    await flow.run(flow_id="r")
    assert of(await flow.history("r")) == [("A", None, None), ("B", None, None)]
    with pytest.raises(InvalidOption, match="history='all'"):
        linear(A, history="all")  # type: ignore[arg-type]
    with pytest.raises(UnknownRun):
        await flow.history("nothing")


async def test_a_long_or_odd_action_is_kept_in_a_form_that_can_be_stored(storage: Storage) -> None:
    flow = linear(A("\udce9" + "x" * 500), storage=storage, keep=60)
    await flow.run(flow_id="r")
    ((_, _, action),) = of(await flow.history("r"))
    assert action == "\\udce9" + "x" * 99


async def test_the_history_of_a_failed_run_ends_with_the_node_that_has_failed(storage: Storage) -> None:
    class Fails(Node):
        def exec(self, prep_res: Any) -> None:
            raise ValueError("not today")

    flow = linear(A, Fails(max_retries=2), storage=storage, history="values")
    with pytest.raises(ValueError, match="not today"):
        await flow.run(flow_id="r")
    a, failed = await flow.history("r")
    assert (failed.node, failed.attempts, failed.action, failed.error) == (
        "Fails",
        2,
        None,
        ("ValueError", "not today"),
    )
    assert failed.started_at >= a.started_at
    await flow.fork("r", at=A)


class Add(Node):
    """Adds to a number."""

    def prep(self, shared: dict[str, Any]) -> dict[str, Any]:
        return {"n": shared["n"], "api_key": "k-123456"}

    async def exec(self, prep_res: dict[str, Any]) -> int:
        return int(prep_res["n"]) + 1

    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: int) -> None:
        shared["n"] = exec_res
        shared.setdefault("seen", []).append(exec_res)
        if exec_res == 2:
            shared["two"] = True
            del shared["gone"]


@pytest.mark.every_backend
async def test_with_values_a_history_has_what_the_hooks_returned_masked_and_cut(storage: Storage) -> None:
    class Odd(Node):
        def prep(self, shared: Any) -> str:
            return "x" * 5000

        def exec(self, prep_res: Any) -> object:
            return object()

    flow = linear(Add, Odd, storage=storage, keep=60, history="values")
    await flow.run({"n": 1, "gone": 1}, flow_id="r")
    add, odd = await flow.history("r")
    assert (add.input, add.output) == ({"n": 1, "api_key": "•••"}, 2)
    assert (odd.input, odd.output) == ("x" * 2000 + "…", "<object>")
    stored = await storage.perform(Get(storage.address(RUNS, "r"), parts=True))
    assert "k-123456" not in str(stored)


async def test_the_values_of_the_last_hundred_nodes_are_kept(storage: Storage) -> None:
    flow = turning(130, storage=storage, keep=60, history="values")
    await flow.run(flow_id="r")
    parts = (await storage.perform(Get(storage.address(RUNS, "r"), parts=True))).parts
    assert len([name for name in parts if name.startswith("values::")]) == 100
    assert len([name for name in parts if name.startswith("before::")]) == 100
    with pytest.raises(UsageError, match="the values of its last 100 nodes are kept"):
        first = linear(A(name="first"), turning(130), storage=storage, keep=60, history="values", name="long")
        await first.run(flow_id="long")
        await first.fork("long", at="first")


async def test_with_values_a_fork_begins_with_the_state_before_the_node(storage: Storage) -> None:
    adds = [Add(name=f"add{number}") for number in range(4)]
    nested = linear(*adds[1:3], name="nested")
    flow = linear(adds[0], nested, adds[3], name="adds", storage=storage, keep=60, history="values")
    await flow.run({"n": 0, "gone": 1}, flow_id="r")
    async with worker([flow]):
        for at, n in {"add0": 0, "nested/add1": 1, "nested": 1, "nested/add2": 2, "add3": 3}.items():
            fork = await flow.fork("r", at=at)
            final = await fork.result(timeout=30)
            assert final["n"] == 4
            first = (await fork.history())[0]
            assert (first.node, first.input["n"]) == ("nested/add1" if at == "nested" else at, n)
            assert final["seen"] == [1, 2, 3, 4]
            assert final["two"]
            assert "gone" not in final


async def test_with_values_a_run_can_be_forked_while_it_runs(storage: Storage) -> None:
    class Forks(Node):
        async def exec(self, prep_res: Any) -> None:
            if step().flow_id == "r":
                await flow.fork("r", at="Add", shared={"n": 10}, flow_id="fork")

    flow = linear(Add, Forks, storage=storage, keep=60, history="values", name="forks")
    await flow.run({"n": 0}, flow_id="r")
    async with worker([flow]):
        assert (await RunHandle("fork", flow).result(timeout=30))["n"] == 11


async def test_a_change_that_is_too_large_to_keep_is_named_when_a_fork_needs_it(storage: Storage) -> None:
    class Shrink(Node):
        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
            shared["text"] = "short"

    flow = linear(A, Shrink, B, storage=storage, keep=60, history="values", name="shrinks")
    await flow.run({"text": "x" * 70_000}, flow_id="r")
    await flow.fork("r", at=B)
    with pytest.raises(UsageError, match="node 'Shrink' has changed more than could be kept"):
        await flow.fork("r", at=A)
