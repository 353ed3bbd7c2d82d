"""One child run for each item: bounded, each with its own waits, results in order, repeatable after a kill."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import Storage
from stepwell.errors import InvalidOption, KeptError, RunFailed, TooLarge, UsageError, WorkCancelled
from stepwell.nodes import ChildMap, Event, Failed, Node, NodeFlow, RunHandle, Wait, linear, parallel, worker
from stepwell.nodes.queue import children
from stepwell.nodes.run.journal import Journal
from stepwell.record import RUNS
from tests.backends import Backend
from tests.nodes.test_children import Double, doubling, has, status_of
from tests.nodes.test_durable import Boom, Say
from tests.nodes.test_wait import parked
from tests.until import until


@pytest.fixture
async def storage(backend: Backend) -> Storage:
    storage = backend.storage()
    await storage.open()
    return storage


class Map(ChildMap):
    def prep(self, shared: dict[str, Any]) -> Any:
        shared["prepared"] = shared.get("prepared", 0) + 1
        return [{"n": n} for n in range(shared["n"])]

    def post(self, shared: dict[str, Any], items: Any, finals: Any) -> None:
        assert [item["n"] for item in items] == list(range(shared["n"]))
        shared["doubled"] = [final if isinstance(final, Failed) else final["doubled"] for final in finals]


async def ids_of(storage: Storage, flow_id: str = "r") -> list[str]:
    found = [entry.key async for entry in storage.scan(RUNS, tag=children.tag_of(flow_id))]
    return sorted(found, key=lambda key: int(key.rpartition("/")[2]))


@pytest.mark.every_backend
@pytest.mark.parametrize("count", [0, 1, 20])
async def test_each_item_has_a_child_and_the_results_are_in_order(storage: Storage, count: int) -> None:
    child = doubling(storage)
    flow = linear(Say([], "a"), Map(child, concurrency=7), Say([], "b"), name="mapping", storage=storage)
    async with worker([flow, child]):
        final = await (await flow.submit({"n": count}, flow_id="r")).result(60)
    assert final == {"n": count, "prepared": 1, "doubled": [2 * n for n in range(count)], "said": ["a", "b"]}
    assert len(await ids_of(storage)) == count


async def test_at_most_concurrency_children_are_started_and_each_has_its_own_wait(storage: Storage) -> None:
    child = doubling(storage, Wait("go"))
    flow = linear(Map(child, concurrency=2, name="map"), name="mapping", storage=storage, keep=True)
    events: list[Event] = []
    flow.subscribe(events.append)
    await parked(flow.run({"n": 5}, flow_id="r"))
    answered: list[str] = []
    while (run := await flow.status("r")).status == "parked":
        (wait,) = run.waits
        assert len(await ids_of(storage)) == len(answered) + len(wait.children)
        assert len(wait.children) <= 2
        assert run.progress["map"] == (len(answered), 5)
        # The last one first.
        answered.append(wait.children[-1])
        await parked(child.resume(answered[-1]))
        await child.answer(answered[-1], 1, run=True)
        if len(answered) < 5:
            await parked(flow.resume("r"))
        else:
            assert (await flow.resume("r"))["doubled"] == [0, 2, 4, 6, 8]
    assert len(set(answered)) == 5
    assert [event.done for event in events if event.kind == "node.progress"] == [1, 2, 3, 4, 5]


class Odd(Double):
    """Fails for odd numbers."""

    def __init__(self) -> None:
        super().__init__(name="odd")
        self.broken = [True]

    async def exec(self, n: int) -> int:
        if n % 2 and self.broken:
            raise Boom(f"odd {n}")
        return 2 * n


def failing(storage: Storage, node: Odd, **options: Any) -> tuple[NodeFlow, NodeFlow]:
    child = linear(node, name="odd", storage=storage)
    return linear(Map(child, name="map", **options), name="mapping", storage=storage, keep=True), child


async def test_skip_puts_failed_in_the_place_of_a_result(storage: Storage) -> None:
    flow, child = failing(storage, Odd(), on_error="skip", concurrency=1)
    async with worker([flow, child]):
        final = await (await flow.submit({"n": 4}, flow_id="r")).result(20)
    first, failed, third, _ = final["doubled"]
    assert (first, third, failed.item) == (0, 4, {"n": 1})
    assert isinstance(failed.error, KeptError)
    assert "Boom: odd 1" in str(failed.error)


async def test_collect_runs_all_children_and_raises_their_errors_together(storage: Storage) -> None:
    odd = Odd()
    flow, child = failing(storage, odd, on_error="collect", concurrency=2)
    async with worker([flow, child]):
        with pytest.raises(RunFailed, match="2 of 4 children of 'map' failed") as failed:
            await (await flow.submit({"n": 4}, flow_id="r")).result(20)
    children = await ids_of(storage)
    assert len(children) == 4
    named = [each for each in children if repr(each) in failed.value.message]
    assert named == [run.flow_id async for run in child.runs("failed")]
    odd.broken.clear()
    assert await child.retry() == 2
    assert await flow.retry() == 1
    async with worker([flow, child]):
        assert (await RunHandle("r", flow).result(20))["doubled"] == [0, 2, 4, 6]


async def test_stop_starts_no_more_children_and_a_retry_continues(storage: Storage) -> None:
    odd = Odd()
    flow, child = failing(storage, odd, concurrency=1)
    async with worker([flow, child]):
        with pytest.raises(RunFailed, match="RunFailed"):
            await (await flow.submit({"n": 4}, flow_id="r")).result(20)
        assert len(await ids_of(storage)) == 2
        odd.broken.clear()
        assert await child.retry() == 1
        assert await flow.retry() == 1
        assert (await RunHandle("r", flow).result(20))["doubled"] == [0, 2, 4, 6]


async def test_a_map_may_be_in_a_branch_and_a_child_may_have_a_map(storage: Storage) -> None:
    lowest = doubling(storage)

    class Sum(Map):
        def post(self, shared: dict[str, Any], items: Any, finals: Any) -> None:
            shared["doubled"] = sum(final["doubled"] for final in finals)

    middle = linear(Sum(lowest), name="middle", storage=storage)

    class Side(Map):
        def post(self, shared: dict[str, Any], items: Any, finals: Any) -> None:
            shared[str(self.name)] = [final["doubled"] for final in finals]
            del shared["prepared"]

    flow = linear(parallel(Side(middle, name="x"), Side(lowest, name="y")), name="top", storage=storage)
    async with worker([flow, middle, lowest]):
        final = await (await flow.submit({"n": 4})).result(30)
    assert final == {"n": 4, "x": [0, 0, 2, 6], "y": [0, 2, 4, 6]}


async def test_the_cancel_of_a_map_reaches_all_its_children(storage: Storage) -> None:
    child = doubling(storage, Wait("go"))
    flow = linear(Map(child, concurrency=3), name="mapping", storage=storage)
    handle = await flow.submit({"n": 9}, flow_id="r")
    async with worker([flow, child]):
        await until(has(flow, "r", "parked"))
        ids = await ids_of(storage)
        for each in ids:
            await until(has(child, each, "parked"))
        await handle.cancel()
    assert [await status_of(child, each) for each in ids] == ["cancelled"] * 3


async def test_items_other_than_dicts_and_large_results(storage: Storage) -> None:
    class Large(Node):
        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
            shared["text"] = "x" * shared["item"]

    child = linear(Large, name="large", storage=storage)

    class Texts(ChildMap):
        def prep(self, shared: dict[str, Any]) -> Any:
            return shared["sizes"]

        def post(self, shared: dict[str, Any], items: Any, finals: Any) -> None:
            shared["found"] = [(final["item"], len(final["text"])) for final in finals]

    flow = linear(Texts(child), name="texts", storage=storage)
    sizes = [400_000, 500_000, 3, 600_000]
    async with worker([flow, child]):
        final = await (await flow.submit({"sizes": sizes})).result(30)
        assert final["found"] == [(size, size) for size in sizes]
        with pytest.raises(RunFailed, match=TooLarge.__name__):
            await (await flow.submit({"sizes": [2_000_000]})).result(30)


async def test_mistakes_are_refused(storage: Storage) -> None:
    child = doubling(storage)
    with pytest.raises(UsageError, match="starts child runs, so the run needs a storage"):
        await linear(Map(child)).run({"n": 1})
    for wrong in ({"concurrency": 0}, {"on_error": "ignore"}):
        with pytest.raises(InvalidOption):
            ChildMap(child, **wrong)
    with pytest.raises(InvalidOption, match="give the flow"):
        ChildMap("child")  # type: ignore[arg-type]

    class Wrong(Map):
        def shared_for(self, item: Any) -> Any:
            return [item]

    with pytest.raises(UsageError, match="returned a list; return a dict"):
        await linear(Wrong(child), storage=storage).run({"n": 1})


async def test_a_map_that_ends_while_it_starts_children_starts_none_twice(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = doubling(storage)
    flow = linear(Map(child, concurrency=4), name="mapping", storage=storage, keep=True)
    parent_of = children.parent_of
    calls = 0

    def killed(journal: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise asyncio.CancelledError
        return parent_of(journal)

    monkeypatch.setattr(children, "parent_of", killed)
    with pytest.raises(WorkCancelled):
        await flow.run({"n": 4}, flow_id="r")
    async with worker([flow, child]):
        await flow.retry()
        assert (await RunHandle("r", flow).result(20))["doubled"] == [0, 2, 4, 6]
    assert len(await ids_of(storage)) == 4


async def test_children_that_ended_after_their_starter_was_killed_are_read(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stored position does not name them yet, so their mail wakes nothing."""
    child = doubling(storage)
    flow = linear(Map(child, concurrency=2), name="mapping", storage=storage, keep=True)
    with monkeypatch.context() as patch:

        async def killed(self: Journal) -> None:
            raise asyncio.CancelledError

        patch.setattr(Journal, "park", killed)
        with pytest.raises(asyncio.CancelledError):
            await flow.run({"n": 4}, flow_id="r")
    for each in await ids_of(storage):
        await child.resume(each)
    await parked(flow.resume("r"))
    assert (await flow.status("r")).progress["Map"] == (2, 4)
    for each in (await ids_of(storage))[2:]:
        await child.resume(each)
    assert (await flow.resume("r"))["doubled"] == [0, 2, 4, 6]
