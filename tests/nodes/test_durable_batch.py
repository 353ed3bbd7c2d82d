"""Batches of durable runs: items are stored before they run, results as they come; a resume does the rest."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from stepwell import Limits, MemoryStorage, Storage
from stepwell.errors import KeptError, TooLarge, Unstorable
from stepwell.nodes import BatchNode, Failed, Node, NodeFlow, linear, parallel, step
from stepwell.nodes.batch.durable import ITEMS_A_PART, UNSAVED, _DurableBatchRun
from stepwell.nodes.walk.on_error import kept_error
from stepwell.record import RUNS
from stepwell.storage import Apply, Get
from stepwell.storage.transport.group_commit import GroupCommit
from tests.backends import Backend
from tests.nodes.test_durable import Boom, Say, Watching
from tests.until import forever, until


@pytest.fixture
async def storage(backend: Backend) -> Storage:
    storage = backend.storage()
    await storage.open()
    return storage


class Square(BatchNode):
    """Squares numbers, and fails or stops at some of them."""

    def __init__(self, ran: list[int], *, bad: set[int] | None = None, prep: Any = None, **options: Any) -> None:
        super().__init__(**options)
        self.ran = ran
        self.bad = set() if bad is None else bad
        self.items_of = prep
        self.prepared: list[int] = []

    def prep(self, shared: dict[str, Any]) -> Any:
        self.prepared.append(1)
        shared["prepared"] = True
        return range(shared["n"]) if self.items_of is None else self.items_of(shared["n"])

    async def exec(self, item: int) -> int:
        self.ran.append(item)
        if item in self.bad:
            raise Boom(str(item))
        return item * item

    def post(self, shared: dict[str, Any], items: Any, results: list[Any]) -> None:
        shared["items"] = list(items)
        shared["squares"] = [result.item if isinstance(result, Failed) else result for result in results]


def expected(n: int) -> dict[str, Any]:
    return {
        "n": n,
        "prepared": True,
        "items": list(range(n)),
        "squares": [number * number for number in range(n)],
        "said": ["end"],
    }


@pytest.mark.parametrize("concurrency", [1, 5])
async def test_a_resumed_batch_redoes_only_the_last_few(storage: Storage, concurrency: int) -> None:
    ran: list[int] = []
    batch = Square(ran, bad={700}, concurrency=concurrency)
    flow = linear(batch, Say([], "end"), storage=storage)
    with pytest.raises(Boom):
        await flow.run({"n": 1000}, flow_id="r")
    run = await flow.status("r")
    assert run.progress["Square"].total == 1000
    assert run.progress["Square"].done >= 700 - concurrency
    batch.bad.clear()
    first = len(ran)
    assert await flow.resume("r") == expected(1000)
    assert batch.prepared == [1]
    assert len(ran) - first <= 300 + concurrency
    assert set(ran) == set(range(1000))


async def kill(running: Coroutine[Any, Any, Any], reached: asyncio.Event, patch: pytest.MonkeyPatch) -> None:
    """End a run like a killed process, which saves nothing, as soon as it has reached a place where it hangs."""

    async def nothing(*args: Any, **options: Any) -> None:
        """Save nothing."""

    patch.setattr("stepwell.nodes.batch.durable._DurableBatchRun._save_at_the_end", nothing)
    patch.setattr("stepwell.nodes.control.ending._interrupt", nothing)
    task = asyncio.create_task(running)
    await asyncio.wait_for(reached.wait(), 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_killed_batch_runs_only_uncommitted_items_again(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    batch = Square(ran)
    flow = linear(batch, Say([], "end"), storage=storage)

    reached = asyncio.Event()

    async def hangs(self: Square, item: int) -> int:
        ran.append(item)
        if item == 700:
            reached.set()
            await asyncio.Event().wait()
        return item * item

    monkeypatch.setattr(Square, "exec", hangs)
    with monkeypatch.context() as patch:
        await kill(flow.run({"n": 1000}, flow_id="r"), reached, patch)
    assert ran == list(range(701))
    monkeypatch.setattr(Square, "exec", lambda self, item: self.ran.append(item) or item * item)
    ran.clear()
    assert await linear(batch, Say([], "end"), storage=storage).resume("r") == expected(1000)
    assert 300 <= len(ran) <= 300 + UNSAVED + 1


async def test_collect_keeps_what_succeeded_and_a_resume_does_only_what_failed(storage: Storage) -> None:
    ran: list[int] = []
    batch = Square(ran, bad={3, 40}, on_error="collect", concurrency=4)
    flow = linear(batch, Say([], "end"), storage=storage)
    with pytest.raises(ExceptionGroup):
        await flow.run({"n": 50}, flow_id="r")
    assert len(ran) == 50
    assert (await flow.status("r")).progress["Square"] == (48, 50)
    batch.bad.clear()
    ran.clear()
    assert await flow.resume("r") == expected(50)
    assert sorted(ran) == [3, 40]


async def test_skip_continues_with_the_branches_that_succeeded(storage: Storage) -> None:
    flow = linear(Square([], bad={1}, on_error="skip"), Say([], "end"), storage=storage)
    assert (await flow.run({"n": 3}))["squares"] == [0, 1, 4]


async def test_skipped_items_are_stored_and_stay_skipped(storage: Storage) -> None:
    ran: list[int] = []
    said: list[str] = []

    class Kept(Square):
        def post(self, shared: dict[str, Any], items: Any, results: list[Any]) -> None:
            shared["results"] = results

    batch = Kept(ran, bad={1, *range(50, 100)}, on_error="skip")
    say = Say(said, "end", fails=[Boom()])
    flow = linear(batch, say, storage=storage)
    with pytest.raises(Boom):
        await flow.run({"n": 100}, flow_id="r")
    state = await flow.resume("r")
    assert len(ran) == 100
    failed = state["results"][1]
    assert isinstance(failed, Failed) and isinstance(failed.error, KeptError)
    assert (failed.item, failed.error.type_name, str(failed.error)) == (1, "Boom", "Boom: 1")


async def test_what_was_skipped_before_a_crash_does_not_run_again(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    batch = Square(ran, bad=set(range(0, 200, 2)), on_error="skip")

    reached = asyncio.Event()

    async def hangs(self: Square, shared: Any, items: Any, results: Any) -> None:
        reached.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(Square, "post", hangs)
        await kill(linear(batch, Say([], "end"), storage=storage).run({"n": 200}, flow_id="r"), reached, patch)
    ran.clear()
    state = await linear(batch, Say([], "end"), storage=storage).resume("r")
    assert state["squares"] == [n * n if n % 2 else n for n in range(200)]
    assert len(ran) <= UNSAVED


class Wordless(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


async def test_an_item_that_failed_with_any_error_can_be_skipped(storage: Storage) -> None:
    errors = [ValueError("x" * 2_000_000), Wordless(), ValueError("half \ud83d"), Boom("fine")]

    class Odd(BatchNode):
        def prep(self, shared: Any) -> list[dict[str, Any]]:
            return [{"number": number} for number in range(60)]

        async def exec(self, item: dict[str, Any]) -> None:
            number = item["number"]
            item["spoiled"] = object()
            raise errors[number % 4]

        def post(self, shared: Any, items: Any, results: list[Failed]) -> None:
            shared["types"] = [kept_error(failed.error).type_name for failed in results]
            shared["longest"] = max(len(kept_error(failed.error).message) for failed in results)

    say = Say([], "end", fails=[Boom()])
    flow = linear(Odd(on_error="skip"), say, storage=storage)
    with pytest.raises(Boom):
        await flow.run(flow_id="r")
    state = await flow.resume("r")
    assert state["types"] == ["ValueError", "Wordless", "ValueError", "Boom"] * 15
    assert state["longest"] == 500


async def test_a_skipped_item_that_cannot_be_stored_raises_with_its_path(storage: Storage) -> None:
    class Spoils(Node):
        def post(self, shared: Any, prep_res: Any, exec_res: Any) -> None:
            shared["failed"] = Failed({"a": [1, object()]}, Boom())

    with pytest.raises(Unstorable, match=r"\$\.failed\.item\.a\[1\] \(object\)"):
        await linear(Spoils, Node).run(storage=storage)


@pytest.mark.parametrize("count", [1, 3, 100])
async def test_an_unstorable_result_raises_however_few_results_there_are(storage: Storage, count: int) -> None:
    class Results(BatchNode):
        def prep(self, shared: Any) -> Any:
            return range(count)

        async def exec(self, item: int) -> Any:
            return object() if item == count - 1 else item

    with pytest.raises(Unstorable, match=f"the result of item {count - 1}"):
        await linear(Results, Node).run(storage=storage)


async def test_large_results_get_their_own_parts_and_one_that_is_too_large_is_named(backend: Backend) -> None:
    storage = backend.storage(limits=Limits(item=1000))
    await storage.open()
    ran: list[int] = []
    say = Say([], "end", fails=[Boom()])

    class Large(BatchNode):
        def prep(self, shared: Any) -> Any:
            return range(60)

        async def exec(self, item: int) -> str:
            ran.append(item)
            return "x" * 300 if item < 59 else "y" * self.params["size"]

        def post(self, shared: Any, items: Any, results: list[str]) -> None:
            shared["sum"] = sum(map(len, results))

    flow = linear(Large, say, storage=storage)
    with pytest.raises(Boom):
        await flow.run(flow_id="r", params={"size": 10})
    assert (await flow.resume("r"))["sum"] == 59 * 300 + 10
    assert len(ran) == 60
    with pytest.raises(TooLarge) as caught:
        await flow.run(params={"size": 1000})
    assert any("the result of item 59 of batch 'Large'" in note for note in caught.value.__notes__)


def generated(n: int) -> Iterator[int]:
    yield from range(n)


async def slowly(n: int) -> AsyncIterator[int]:
    for number in range(n):
        await asyncio.sleep(0)
        yield number


@pytest.mark.parametrize("source", [generated, slowly, lambda n: list(range(n)), lambda n: tuple(range(n))])
async def test_items_come_from_any_iterable_and_a_resume_never_asks_for_them_again(
    storage: Storage, source: Any
) -> None:
    batch = Square([], bad={5}, prep=source)
    flow = linear(batch, Say([], "end"), storage=storage)
    with pytest.raises(Boom):
        await flow.run({"n": 10}, flow_id="r")
    batch.bad.clear()
    assert await flow.resume("r") == expected(10)
    assert batch.prepared == [1]


async def test_an_empty_batch(storage: Storage) -> None:
    assert await linear(Square([]), Say([], "end"), storage=storage).run({"n": 0}) == expected(0)
    assert (await linear(Square([], prep=lambda n: None), storage=storage).run({"n": 0}))["squares"] == []


async def test_items_are_stored_before_they_run_and_parts_are_never_rewritten(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[int] = []

    class Look(Square):
        async def exec(self, item: int) -> int:
            if item == 0:
                record = await storage.perform(Get(storage.address(RUNS, "r"), parts=True))
                names = [name for name in record.parts if name.startswith("items:")]
                stored.append(len(names))
            return item * item

    watching = Watching(storage, monkeypatch)
    n = 3 * ITEMS_A_PART + 1
    await linear(Look([], name="batch"), Say([], "end")).run({"n": n}, storage=storage, flow_id="r")
    assert stored == [4]
    changes = [operation.change for operation in watching.operations if isinstance(operation, Apply)]
    written = [name for change in changes for name, part in change.parts.items() if part is not None]
    dropped = [name for change in changes for name, part in change.parts.items() if part is None]
    assert len(set(written)) == len(written)
    assert set(dropped) == set(written) - {"graph::"}
    assert len(changes) <= 4 + n / UNSAVED + 1


async def test_slow_items_are_committed_as_they_come(storage: Storage) -> None:
    seen: list[int] = []

    class Slow(BatchNode):
        def prep(self, shared: Any) -> list[int]:
            return [0, 1, 2]

        async def exec(self, item: int) -> int:
            if item:
                run = await until(lambda: flow.status("r"), lambda run: run.progress["Slow"].done >= item)
                seen.append(run.progress["Slow"].done)
            return item

    flow = linear(Slow, storage=storage)
    await flow.run(flow_id="r")
    assert seen == [1, 2]


@pytest.mark.parametrize("options", [{}, {"concurrency": 3}])
async def test_items_in_threads(storage: Storage, options: dict[str, Any]) -> None:
    class Threads(Square):
        def exec(self, item: int) -> int:  # type: ignore[override]
            self.ran.append(item)
            if item in self.bad:
                raise Boom
            return item * item

    ran: list[int] = []
    batch = Threads(ran, bad={300}, name="Square", **options)
    flow = linear(batch, Say([], "end"), storage=storage)
    with pytest.raises(Boom):
        await flow.run({"n": 600}, flow_id="r")
    batch.bad.clear()
    before = len(ran)
    assert await flow.resume("r") == expected(600)
    assert set(ran) == set(range(600))
    assert len(ran) - before <= 300 + 1 + 4 * UNSAVED


class InProcesses(BatchNode):
    """Returns each number with the process that handled it; number 30 ends its process once."""

    def prep(self, shared: dict[str, Any]) -> Any:
        return [(number, shared["marker"]) for number in range(60)]

    def exec(self, item: tuple[int, str]) -> list[int]:
        number, marker = item
        if number == 30 and not Path(marker).exists():
            Path(marker).touch()
            os._exit(1)
        time.sleep(0.002)
        return [number, os.getpid()]

    def post(self, shared: dict[str, Any], items: Any, results: list[Any]) -> None:
        shared["results"] = results


@pytest.mark.parametrize(("on_error", "concurrency"), [("skip", 1), ("collect", 2)])
async def test_a_run_whose_pool_broke_keeps_its_results_and_resumes_with_a_new_pool(
    tmp_path: Path, on_error: Any, concurrency: int
) -> None:
    batch = InProcesses(on_error=on_error, concurrency=concurrency)
    flow = linear(batch, storage=MemoryStorage())
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as batch.executor:
        with pytest.raises(BrokenProcessPool):
            await flow.run({"marker": str(tmp_path / "marker")}, flow_id="r")
        run = await flow.status("r")
        assert run.status == "failed"
        done, total = run.progress["InProcesses"]
        assert 0 < done <= 59
        assert total == 60
    with ProcessPoolExecutor(1, mp_context=spawn) as batch.executor:
        results = (await flow.resume("r"))["results"]
    assert [number for number, _ in results] == list(range(60))
    first, second = results[0][1], results[30][1]
    assert [pid for _, pid in results].count(first) == done
    assert [pid for _, pid in results].count(second) == 60 - done


async def test_a_batch_that_is_visited_again_begins_anew(storage: Storage) -> None:
    class Again(Square):
        async def exec(self, item: int) -> int:
            self.ran.append(step().visit)
            return await super().exec(item)

        def post(self, shared: dict[str, Any], items: Any, results: list[Any]) -> Any:
            shared["n"] -= 1
            shared.setdefault("all", []).append(results)
            return "again" if shared["n"] else "done"

    batch = Again([])
    batch - "again" >> batch
    batch - "done" >> Say([], "end")
    final = await NodeFlow(start=batch, storage=storage).run({"n": 3})
    assert final["all"] == [[0, 1, 4], [0, 1], [0]]


async def test_a_batch_in_a_branch_and_beside_another(storage: Storage) -> None:
    ran: list[int] = []
    bad = Square(ran, bad={30}, name="bad")
    flow = NodeFlow(
        start=parallel(
            linear(bad, Say([], "end")),
            linear(Square(ran, name="good"), Say([], "end")),
            on_error="collect",
            merge=dict.fromkeys(("prepared", "items", "squares", "said"), lambda values: values[0]),
        ),
        storage=storage,
    )
    with pytest.raises(ExceptionGroup):
        await flow.run({"n": 60}, flow_id="r")
    bad.bad.clear()
    ran.clear()
    assert await flow.resume("r") == expected(60)
    assert len(ran) <= 31


async def test_an_unstorable_item_raises_with_its_node_and_index(storage: Storage) -> None:
    class Items(BatchNode):
        def prep(self, shared: Any) -> list[Any]:
            return [*range(ITEMS_A_PART + 5), {"x": object()}]

    class Results(BatchNode):
        def prep(self, shared: Any) -> Any:
            return range(100)

        async def exec(self, item: int) -> Any:
            return {"y": object()} if item == 30 else item

    with pytest.raises(Unstorable, match=rf"after node 'Items': item {ITEMS_A_PART + 5}: \$\.x \(object\)"):
        await linear(Items).run(storage=storage)
    with pytest.raises(Unstorable, match=r"after node 'Results': the result of item 30: \$\.y \(object\)"):
        await linear(Results, Node).run(storage=storage)


async def test_large_items_get_smaller_parts_and_one_that_is_too_large_is_named(backend: Backend) -> None:
    storage = backend.storage(limits=Limits(item=1000))
    await storage.open()

    class Large(BatchNode):
        def prep(self, shared: Any) -> list[str]:
            return ["x" * 300] * 20 + ["y" * shared["size"]]

        async def exec(self, item: str) -> int:
            return len(item)

        def post(self, shared: Any, items: Any, results: list[int]) -> None:
            shared["sum"] = sum(results)

    flow = linear(Large, storage=storage)
    assert (await flow.run({"size": 10}))["sum"] == 6010
    with pytest.raises(TooLarge) as caught:
        await flow.run({"size": 1000})
    assert any("item 20 of batch 'Large'" in note for note in caught.value.__notes__)


async def test_a_cancelled_batch_keeps_what_it_has_done(storage: Storage) -> None:
    reached = asyncio.Event()

    class Stops(Square):
        async def exec(self, item: int) -> int:
            if item == 20 and not reached.is_set():
                reached.set()
                await forever()
            return await super().exec(item)

    ran: list[int] = []
    flow = linear(Stops(ran), Say([], "end"), storage=storage)
    task = asyncio.create_task(flow.run({"n": 30}, flow_id="r"))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await flow.resume("r") == expected(30)
    assert ran == list(range(30))


async def test_a_result_that_cannot_be_saved_fails_the_batch_also_if_its_save_ends_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()
    seal, take_back = _DurableBatchRun._seal, GroupCommit.take_back

    async def seal_late(self: Any, *args: Any) -> Any:
        began.set()
        await may_end.wait()
        return await seal(self, *args)

    async def end_after_the_items(self: Any) -> Any:
        may_end.set()
        return await take_back(self)

    monkeypatch.setattr(_DurableBatchRun, "_seal", seal_late)
    monkeypatch.setattr(GroupCommit, "take_back", end_after_the_items)

    class Large(BatchNode):
        def prep(self, shared: Any) -> Any:
            return ["large", "small"]

        async def exec(self, item: str) -> str:
            if item == "small":
                await began.wait()
            return "x" * 300_000 if item == "large" else ""

    with pytest.raises(TooLarge, match="item 0"):
        await linear(Large, storage=MemoryStorage(limits=Limits(item=200_000))).run()
