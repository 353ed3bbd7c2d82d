"""How a run is submitted: its tags, its timeout, and what happens if a run of its id exists."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import Storage
from stepwell.errors import InvalidOption, RunCancelled, RunExists, RunFailed, UsageError
from stepwell.nodes import Node, NodeFlow, Run, RunHandle, Wait, linear, step, worker
from stepwell.record import RUNS
from stepwell.testing import Clock
from tests.backends import Backend
from tests.nodes.test_queue import logged
from tests.until import until


@pytest.fixture
async def storage(backend: Backend, clock: Clock) -> Storage:
    storage = backend.storage(clock=clock)
    await storage.open()
    return storage


def asking(storage: Storage, name: str = "asking", **options: Any) -> NodeFlow:
    return linear(Wait("answer", **options), name=name, storage=storage)


async def parked(handle: RunHandle) -> Run:
    return await until(handle.status, lambda run: run.status == "parked")


# Tags


@pytest.mark.every_backend
async def test_runs_are_found_by_their_tags(storage: Storage) -> None:
    flow, _ = logged(storage)
    first = await flow.submit({"name": "a"}, flow_id="r-1", tags={"customer": 7, "country": "de"})
    await flow.submit({"name": "b"}, flow_id="r-2", tags={"customer": 7})
    await flow.submit({"name": "c"}, flow_id="r-3", tags={"customer": 77})
    assert sorted([run.flow_id async for run in flow.runs(tags={"customer": 7})]) == ["r-1", "r-2"]
    assert [run.flow_id async for run in flow.runs(tags={"customer": 7, "country": "de"})] == ["r-1"]
    assert [run.flow_id async for run in flow.runs(tags={"customer": 8})] == []
    async with worker([flow]):
        await first.result(timeout=60)
    run = await first.status()
    assert run.tags == {"customer": "7", "country": "de"}
    assert "r-1" in [run.flow_id async for run in flow.runs("finished", tags={"customer": 7})]


@pytest.mark.parametrize("tags", [{"a=b": 1}, {"": 1}, {"parent:x": 1}, {"a": 1.5}, {"a": True}, ["a"], {"a\n": "b"}])
async def test_tags_that_could_be_mistaken_for_others_are_refused(storage: Storage, tags: Any) -> None:
    flow, _ = logged(storage)
    with pytest.raises(ValueError, match="tag"):
        await flow.submit({"name": "a"}, tags=tags)


# A run of this id exists


@pytest.mark.every_backend
async def test_the_handle_says_whether_the_run_was_created(storage: Storage) -> None:
    flow, _ = logged(storage)
    assert (await flow.submit({"name": "a"}, flow_id="r")).created
    assert not (await flow.submit({"name": "a"}, flow_id="r")).created


@pytest.mark.every_backend
async def test_an_id_with_other_data_is_refused_with_the_names_of_the_fields(storage: Storage) -> None:
    flow, seen = logged(storage)
    handle = await flow.submit({"name": "a", "amount": 1, "note": "x"}, flow_id="r", params={"currency": "EUR"})
    with pytest.raises(RunExists, match=r"other data \('note', 'amount', 'params'\)") as refused:
        await flow.submit({"name": "a", "amount": 2}, flow_id="r")
    assert refused.value.differs == ("note", "amount", "params")
    async with worker([flow]):
        await handle.result(timeout=60)
    with pytest.raises(RunExists, match="with other data;") as refused:
        await flow.submit({"name": "a", "amount": 2}, flow_id="r")
    assert refused.value.differs == ()
    # The run has changed its own data, which is not compared.
    same = {"name": "a", "amount": 1, "note": "x"}
    assert not (await flow.submit(same, flow_id="r", params={"currency": "EUR"})).created
    assert len(seen.started) == 1


async def test_equal_data_in_another_order_is_not_other_data(storage: Storage) -> None:
    flow, _ = logged(storage)
    await flow.submit({"name": "a", "inside": {"x": 1, "y": {1, 2}}}, flow_id="r")
    assert not (await flow.submit({"inside": {"y": {2, 1}, "x": 1}, "name": "a"}, flow_id="r")).created


async def test_on_exists_return_takes_the_run_whatever_its_data(storage: Storage) -> None:
    flow, seen = logged(storage)
    await flow.submit({"name": "a"}, flow_id="r")
    handle = await flow.submit({"name": "b"}, flow_id="r", on_exists="return")
    async with worker([flow]):
        await handle.result(timeout=60)
    assert (handle.created, seen.started) == (False, ["a"])


async def test_on_exists_raise_refuses_equal_data_too(storage: Storage) -> None:
    flow, _ = logged(storage)
    await flow.submit({"name": "a"}, flow_id="r", on_exists="raise")
    with pytest.raises(RunExists, match=r"exists already \(queued\)"):
        await flow.submit({"name": "a"}, flow_id="r", on_exists="raise")


@pytest.mark.every_backend
async def test_on_exists_replace_changes_a_run_that_has_not_started(storage: Storage) -> None:
    flow, seen = logged(storage)
    await flow.submit({"name": "a", "old": 1}, flow_id="r", params={"x": 1}, tags={"by": "a"})
    other = await flow.submit({"name": "other"}, flow_id="s")
    handle = await flow.submit({"name": "b"}, flow_id="r", on_exists="replace", tags={"by": "b"})
    assert not handle.created
    async with worker([flow], concurrency=1):
        assert await handle.result(timeout=60) == {"name": "b", "done": "b"}
        await other.result(timeout=60)
    # It has kept its place in the queue.
    assert seen.started == ["b", "other"]
    assert (await handle.status()).tags == {"by": "b"}
    with pytest.raises(RunExists, match="has started"):
        await flow.submit({"name": "c"}, flow_id="r", on_exists="replace")


async def test_a_replaced_run_keeps_its_signals(storage: Storage) -> None:
    flow = asking(storage, signal="go")
    handle = await flow.submit({"by": "a"}, flow_id="r")
    await flow.signal("r", "go", "now")
    await flow.submit({"by": "b"}, flow_id="r", on_exists="replace")
    async with worker([flow]):
        assert await handle.result(timeout=60) == {"by": "b", "answer": "now"}


async def test_a_run_that_is_replaced_while_it_starts_runs_with_the_new_data(storage: Storage) -> None:
    flow, seen = logged(storage)
    handle = await flow.submit({"name": "a"}, flow_id="r")
    async with worker([flow]):
        while True:
            try:
                await flow.submit({"name": "b"}, flow_id="r", on_exists="replace")
            except RunExists:
                break
            await asyncio.sleep(0)
        final = await handle.result(timeout=60)
    assert final["name"] == final["done"] == seen.started[-1]
    assert len(seen.started) == 1


@pytest.mark.every_backend
async def test_on_exists_restart_submits_a_run_again_that_has_ended(storage: Storage) -> None:
    flow, seen = logged(storage)
    async with worker([flow]):
        first = await flow.submit({"name": "a"}, flow_id="r", on_exists="restart")
        await first.result(timeout=60)
        again = await flow.submit({"name": "b"}, flow_id="r", on_exists="restart")
        assert again.created
        assert await again.result(timeout=60) == {"name": "b", "done": "b"}
    assert seen.started == ["a", "b"]
    assert (await again.status()).errors == ()


async def test_a_run_that_has_not_ended_is_not_restarted(storage: Storage) -> None:
    flow = asking(storage)
    handle = await flow.submit({"by": "a"}, flow_id="r")
    async with worker([flow]):
        await parked(handle)
        with pytest.raises(RunExists, match=r"exists already \(parked\)"):
            await flow.submit({"by": "b"}, flow_id="r", on_exists="restart")
        assert not (await flow.submit({"by": "a"}, flow_id="r", on_exists="restart")).created


async def test_a_child_is_found_again_although_its_node_computes_other_data(storage: Storage) -> None:
    child, seen = logged(storage, name="child")
    computed = iter(["first", "second", "third"])

    class Start(Node):
        async def exec(self, prep_res: Any) -> Any:
            return await (await step().child(child, {"name": next(computed)}, id="one")).result()

        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
            shared["child"] = exec_res["done"]

    flow = linear(Start, name="parent", storage=storage)
    async with worker([flow, child]):
        assert await (await flow.submit()).result(timeout=60) == {"child": "first"}
    assert seen.started == ["first"]


# Debounced


@pytest.mark.every_backend
async def test_each_debounced_call_delays_the_start_and_gives_its_data(storage: Storage, clock: Clock) -> None:
    flow, seen = logged(storage)

    async def submit(name: str) -> RunHandle:
        return await flow.submit({"name": name}, flow_id="r", debounce=2.0)

    async with worker([flow]):
        handles = [await submit("a")]
        clock.advance(1.5)
        handles.append(await submit("b"))
        clock.advance(1.5)
        assert [due.address.key for due in await storage.due(RUNS)] == []
        handles.append(await submit("c"))
        clock.advance(2.5)
        assert (await handles[0].result(timeout=60))["done"] == "c"
    assert seen.started == ["c"]
    assert [handle.created for handle in handles] == [True, False, False]
    assert {handle.id for handle in handles} == {"r"}


async def test_a_debounced_call_needs_the_id_that_it_delays(storage: Storage) -> None:
    flow, _ = logged(storage)
    with pytest.raises(InvalidOption, match=r"debounce=2 delays the run of an id: give flow_id=, too"):
        await flow.submit({"name": "a"}, debounce=2)


@pytest.mark.every_backend
async def test_a_debounced_run_starts_at_most_so_late(storage: Storage, clock: Clock) -> None:
    flow, _ = logged(storage)
    for _ in range(5):
        handle = await flow.submit({"name": "a"}, flow_id="r", debounce=2.0, at_most=5.0)
        clock.advance(1.0)
    assert [due.address.key for due in await storage.due(RUNS)] == ['"r"']
    async with worker([flow]):
        await handle.result(timeout=60)


async def test_a_function_merges_the_data_of_debounced_calls(storage: Storage, clock: Clock) -> None:
    flow, _ = logged(storage)

    def merge(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
        return {**now, "pages": sorted({*before["pages"], *now["pages"]})}

    for page in (3, 1, 3):
        handle = await flow.submit({"name": "a", "pages": [page]}, flow_id="r", debounce=2.0, merge=merge)
    clock.advance(3)
    async with worker([flow]):
        assert (await handle.result(timeout=60))["pages"] == [1, 3]
    with pytest.raises(UsageError, match=r"merge= returned a NoneType"):
        for _ in range(2):
            await flow.submit({"name": "a"}, flow_id="s", debounce=2.0, merge=lambda before, now: None)  # type: ignore[arg-type,return-value]


async def test_no_debounced_call_is_lost_while_the_run_of_its_id_runs(storage: Storage, clock: Clock) -> None:
    flow = asking(storage)
    first = await flow.submit({"page": 1}, flow_id="r", debounce=2.0)
    clock.advance(3)
    async with worker([flow]):
        await parked(first)
        second = await flow.submit({"page": 2}, flow_id="r", debounce=2.0)
        third = await flow.submit({"page": 3}, flow_id="r", debounce=2.0)
        assert (second.id, third.id) == ("r~2", "r~2")
        clock.advance(3)
        await parked(second)
        for handle in (first, second):
            await handle.answer("go")
        assert (await second.result(timeout=60))["page"] == 3
        await first.result(timeout=60)
        # Its id is free again.
        again = await flow.submit({"page": 4}, flow_id="r", debounce=2.0)
        assert (again.id, again.created) == ("r", True)


@pytest.mark.every_backend
async def test_calls_at_once_are_all_merged(storage: Storage, clock: Clock) -> None:
    flow, seen = logged(storage)
    handles = await asyncio.gather(
        *(
            flow.submit({"name": "a", "pages": [page]}, flow_id="r", debounce=2.0, merge=_all_pages)
            for page in range(12)
        )
    )
    assert sum(handle.created for handle in handles) == 1
    clock.advance(3)
    async with worker([flow]):
        assert (await handles[0].result(timeout=60))["pages"] == list(range(12))
    assert len(seen.started) == 1


def _all_pages(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    return {**now, "pages": sorted({*before["pages"], *now["pages"]})}


@pytest.mark.every_backend
async def test_each_call_is_worked_off_although_workers_start_the_run_meanwhile(shared_backend: Backend) -> None:
    storage, done = shared_backend.storage(), set[int]()

    class Index(Node):
        def prep(self, shared: dict[str, Any]) -> Any:
            return shared["pages"]

        async def exec(self, pages: list[int]) -> None:
            await asyncio.sleep(0.002)
            done.update(pages)

    flow = linear(Index(name="index"), name="index", storage=storage)

    async def call(pages: range) -> None:
        for page in pages:
            await flow.submit({"pages": [page]}, flow_id="doc", debounce=0.001, at_most=0.01, merge=_all_pages)
            await asyncio.sleep(0.001)

    async with worker([flow]), worker([flow]):
        await asyncio.gather(call(range(40)), call(range(40, 80)))
        await until(lambda: done == set(range(80)))


@pytest.mark.parametrize(
    "options",
    [
        {"debounce": 0},
        {"at_most": 3},
        {"merge": dict},
        {"debounce": 2, "at_most": 1},
        {"debounce": 2, "after": 1},
        {"debounce": 2, "on_exists": "raise"},
        {"debounce": 2, "merge": "x"},
        {"on_exists": "resume"},
        {"timeout": -1},
        {"timeout": 5, "after": 5},
    ],
)
async def test_options_that_exclude_each_other_are_refused(storage: Storage, options: dict[str, Any]) -> None:
    flow, _ = logged(storage)
    with pytest.raises(InvalidOption):
        await flow.submit({"name": "a"}, flow_id="r", **options)


# Timeouts


@pytest.mark.every_backend
async def test_a_queued_run_is_cancelled_after_its_timeout(storage: Storage, clock: Clock) -> None:
    flow, seen = logged(storage)
    handle = await flow.submit({"name": "a"}, timeout=60)
    clock.advance(61)
    async with worker([flow]):
        with pytest.raises(RunCancelled, match="its timeout of 60 s has passed"):
            await handle.result(timeout=60)
    assert seen.started == []


@pytest.mark.every_backend
async def test_a_parked_run_is_cancelled_after_its_timeout(storage: Storage, clock: Clock) -> None:
    flow = asking(storage, timeout=3600)
    handle = await flow.submit(timeout=60)
    async with worker([flow]):
        await parked(handle)
        clock.advance(61)
        with pytest.raises(RunCancelled, match="its timeout of 60 s has passed"):
            await handle.result(timeout=60)


async def test_the_nodes_of_a_run_are_undone_after_its_timeout(storage: Storage, clock: Clock) -> None:
    class Book(Node):
        def exec(self, prep_res: Any) -> str:
            return "seat 7"

        def undo(self, shared: dict[str, Any], result: Any) -> None:
            shared["undone"] = result

    flow = linear(Book(name="book"), Wait("answer"), name="booking", storage=storage)
    handle = await flow.submit(timeout=60)
    async with worker([flow]):
        await parked(handle)
        clock.advance(61)
        with pytest.raises(RunCancelled, match="its timeout of 60 s has passed"):
            await handle.result(timeout=60)
    assert await storage.get_data(RUNS, handle.id) == {"undone": "seat 7"}


async def test_the_timeout_of_a_wait_fires_before_that_of_its_run(storage: Storage, clock: Clock) -> None:
    wait, ended = Wait("answer", timeout=60), Node(name="ended")
    wait - "timeout" >> ended
    flow = NodeFlow(wait, name="both", storage=storage)
    handle = await flow.submit(timeout=3600)
    async with worker([flow]):
        await parked(handle)
        clock.advance(61)
        assert await handle.result(timeout=60) == {}
    assert (await handle.status()).path == ("answer", "ended")


async def test_the_node_of_a_run_is_cancelled_when_its_timeout_passes(backend: Backend) -> None:
    started = asyncio.Event()

    async def wait(name: str) -> None:
        started.set()
        await asyncio.Event().wait()

    flow, seen = logged(backend.storage(), wait)
    handle = await flow.submit({"name": "a"}, timeout=0.5)
    async with worker([flow]):
        with pytest.raises(RunCancelled, match=r"its timeout of 0.5 s has passed"):
            await handle.result(timeout=60)
    assert ("end", "a") in seen.log or not started.is_set()


async def test_a_run_in_time_ends_as_without_a_timeout(storage: Storage) -> None:
    flow, _ = logged(storage)
    handle = await flow.submit({"name": "a"}, timeout=60, partition="p")
    async with worker([flow]):
        assert (await handle.result(timeout=60))["done"] == "a"


async def test_a_failed_run_that_is_resumed_has_no_timeout_any_more(storage: Storage, clock: Clock) -> None:
    fails = True

    async def fail(name: str) -> None:
        if fails:
            raise ValueError("no stock")

    flow, _ = logged(storage, fail)
    handle = await flow.submit({"name": "a"}, timeout=60)
    async with worker([flow]):
        with pytest.raises(RunFailed):
            await handle.result(timeout=60)
        clock.advance(61)
        fails = False
        # Its runner may still hold it.
        await until(lambda: flow.retry([handle.id]))
        final = await until(lambda: _final(handle), lambda final: final is not None)
    assert final["done"] == "a"


async def _final(handle: RunHandle) -> dict[str, Any] | None:
    try:
        return await handle.result(timeout=60)
    except RunFailed:
        return None
