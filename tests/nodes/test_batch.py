"""Batches: items, windows, results, and failures."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from stepwell import MemoryStorage
from stepwell.errors import InvalidGraph, InvalidItems, InvalidOption, UsageError, WorkCancelled
from stepwell.nodes import BatchNode, Failed, Node, NodeFlow, linear, parallel
from stepwell.nodes.walk.threads import in_thread
from stepwell.nodes.walk.workgroup import WorkGroup
from tests.until import forever, yields


class Batch(BatchNode):
    """Works on ``shared["items"]`` with the coroutine function ``shared["work"]``."""

    def prep(self, shared):
        self.work = shared["work"]
        return shared["items"]

    async def exec(self, item):
        return await self.work(item)

    def post(self, shared, prep_res, exec_res):
        shared["results"] = exec_res


class SyncBatch(Batch):
    def exec(self, item):
        return self.work(item)


async def double(item):
    await asyncio.sleep(0)
    return item * 2


async def results(items, work=double, kind=Batch, **options):
    return (await NodeFlow(start=kind(**options)).run({"items": items, "work": work}))["results"]


async def agen(items):
    for item in items:
        await asyncio.sleep(0)
        yield item


@pytest.mark.parametrize("concurrency", [1, 2, 100])
@pytest.mark.parametrize(
    ("items", "expected"),
    [
        pytest.param(lambda: [1, 2, 3], [2, 4, 6], id="list"),
        pytest.param(lambda: (n for n in (1, 2, 3)), [2, 4, 6], id="generator"),
        pytest.param(lambda: agen([1, 2, 3]), [2, 4, 6], id="async generator"),
        pytest.param(lambda: {3}, [6], id="set"),
        pytest.param(lambda: range(0), [], id="no item"),
        pytest.param(lambda: None, [], id="None"),
    ],
)
async def test_items_are_any_iterable_or_async_iterable(items, expected, concurrency):
    assert await results(items(), concurrency=concurrency) == expected
    assert await results(items(), concurrency=concurrency, on_error="skip") == expected
    assert await results(items(), lambda n: n * 2, SyncBatch, concurrency=concurrency) == expected


@pytest.mark.parametrize(
    "wrong", ["text", b"bytes", bytearray(b"x"), {"a": 1}, 7, object()], ids=lambda wrong: type(wrong).__name__
)
@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_result_that_is_not_a_collection_of_items_raises(wrong, concurrency):
    with pytest.raises(InvalidItems, match="return") as caught:
        await results(wrong, concurrency=concurrency)
    assert (caught.value.node, caught.value.type_name) == ("Batch", type(wrong).__name__)


async def test_prep_may_be_an_async_generator():
    class Streams(Batch):
        async def prep(self, shared):
            for n in range(3):
                yield n

        async def exec(self, item):
            return item

    flow = NodeFlow(start=Streams(concurrency=2))
    assert (await flow.run({}))["results"] == [0, 1, 2]


def test_an_async_iterable_from_a_def_prep_raises_without_a_loop():
    class Streams(SyncBatch):
        def prep(self, shared):
            return agen([1])

    with pytest.raises(UsageError, match=r"await flow\.run"):
        NodeFlow(start=Streams()).run_sync()


def test_a_batch_runs_without_a_loop():
    flow = NodeFlow(start=SyncBatch())
    assert flow.run_sync({"items": [1, 2], "work": str})["results"] == ["1", "2"]
    with pytest.raises(ValueError):
        flow.run_sync({"items": ["x"], "work": int})


async def test_by_default_one_item_runs_at_a_time():
    assert BatchNode().concurrency == 1
    running = []

    async def work(item):
        running.append(item)
        await asyncio.sleep(0)
        assert running == [item]
        running.remove(item)

    await results(range(10), work)


@pytest.mark.parametrize("lazily", [False, True])
@pytest.mark.parametrize("window", [2, 7])
async def test_never_more_items_than_concurrency_run_at_once(window, lazily):
    running, most = 0, 0

    async def work(item):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (item % 3))
        running -= 1

    await results(agen(range(40)) if lazily else range(40), work, concurrency=window)
    assert most == window


async def test_items_are_taken_only_when_a_worker_is_free():
    taken, release = [], asyncio.Event()

    def items():
        for n in range(1000):
            taken.append(n)
            yield n

    task = asyncio.create_task(results(items(), lambda item: release.wait(), concurrency=3))
    await yields(50)
    assert taken == [0, 1, 2]
    release.set()
    assert len(await task) == 1000


async def test_a_batch_has_as_many_threads_as_its_concurrency():
    barrier = threading.Barrier(12)
    work = lambda item: barrier.wait(10)  # noqa: E731
    got = await results(range(24), work, SyncBatch, concurrency=12)
    assert sorted(got) == sorted([*range(12)] * 2)


@pytest.mark.parametrize("kind", [Batch, SyncBatch])
async def test_results_are_in_the_order_of_the_items(kind):
    delays = [0.02, 0, 0.01, 0, 0.005]
    if kind is Batch:

        async def work(item):
            await asyncio.sleep(delays[item])
            return item
    else:
        event = threading.Event()

        def work(item):
            event.wait(delays[item])
            return item

    assert await results(range(5), work, kind, concurrency=5) == [0, 1, 2, 3, 4]


async def test_the_flows_concurrency_bounds_all_its_batches_together():
    running, most = 0, 0

    async def work(item):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    class Other(Batch):
        def post(self, shared, prep_res, exec_res):
            pass

    def flow(**options):
        inner = linear(Other(concurrency=10))
        return NodeFlow(start=parallel(Batch(concurrency=10), inner), **options)

    async def measured(flow, **options):
        nonlocal most
        most = 0
        await flow.run({"items": range(30), "work": work}, **options)
        return most

    assert await measured(flow()) == 20
    assert await measured(flow(concurrency=3)) == 3
    assert await measured(flow(concurrency=3), concurrency=5) == 5
    assert await measured(flow(), concurrency=1) == 1


async def test_a_nested_flows_concurrency_bounds_what_is_inside_it():
    running, most = 0, 0

    async def work(item):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    outer = NodeFlow(start=linear(Batch(concurrency=10), concurrency=2), concurrency=8)
    await outer.run({"items": range(30), "work": work})
    assert most == 2


async def test_the_bound_holds_for_items_in_threads_too():
    lock, running, most = threading.Lock(), 0, 0

    def work(item):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.002)
        with lock:
            running -= 1

    await NodeFlow(start=SyncBatch(concurrency=8), concurrency=2).run({"items": range(20), "work": work})
    assert most <= 2


@pytest.mark.parametrize(
    "options",
    [{"concurrency": 0}, {"concurrency": True}, {"concurrency": 2.0}, {"on_error": "ignore"}, {"executor": 3}],
)
def test_an_invalid_setting_raises(options):
    with pytest.raises(InvalidOption, match=f"{next(iter(options))}="):
        BatchNode(**options)


async def test_an_invalid_concurrency_of_a_run_raises():
    with pytest.raises(InvalidOption, match="concurrency"):
        await NodeFlow(start=Batch).run({}, concurrency=0)
    with pytest.raises(InvalidOption, match="concurrency"):
        NodeFlow(concurrency=0)


async def test_stop_cancels_and_awaits_the_siblings_and_raises_the_first_error():
    ended, began = [], asyncio.Event()

    async def work(item):
        if item == 2:
            await began.wait()
            raise ValueError("second")
        if item == 3:
            began.set()
        try:
            await forever()
        finally:
            await asyncio.sleep(0)
            ended.append(item)

    with pytest.raises(ValueError, match="second") as caught:
        await results(range(10), work, concurrency=4)
    assert sorted(ended) == [0, 1, 3]
    assert "item 2 of batch 'Batch'" in caught.value.__notes__
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_collect_runs_all_and_raises_a_group(concurrency):
    done = []

    async def work(item):
        await asyncio.sleep(0)
        if item % 2:
            raise ValueError(item)
        done.append(item)

    with pytest.raises(ExceptionGroup, match="2 of 5 items of batch 'Batch' failed") as caught:
        await results(range(5), work, concurrency=concurrency, on_error="collect")
    assert done == [0, 2, 4]
    assert [error.args for error in caught.value.exceptions] == [(1,), (3,)]


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_skip_puts_failed_in_the_items_place(concurrency):
    async def work(item):
        return 10 // item

    first, second, third = await results([5, 0, 2], work, concurrency=concurrency, on_error="skip")
    assert (first, third) == (2, 5)
    assert isinstance(second, Failed)
    assert second.item == 0
    assert isinstance(second.error, ZeroDivisionError)


async def test_a_generator_is_closed_when_the_batch_stops_early():
    closed = []

    def items():
        try:
            yield from range(100)
        finally:
            closed.append("sync")

    async def async_items():
        try:
            for n in range(100):
                yield n
        finally:
            closed.append("async")

    async def fail(item):
        raise ValueError

    for concurrency in (1, 2):
        with pytest.raises(ValueError):
            await results(items(), fail, concurrency=concurrency)
        with pytest.raises(ValueError):
            await results(async_items(), fail, concurrency=concurrency)
    assert closed == ["sync", "async"] * 2


async def test_an_item_that_is_cancelled_from_inside_has_failed():
    async def work(item):
        task = asyncio.ensure_future(forever())
        task.cancel()
        await task

    for concurrency in (1, 2):
        with pytest.raises(WorkCancelled, match="item 0"):
            await results([1], work, concurrency=concurrency)
        (failed,) = await results([1], work, concurrency=concurrency, on_error="skip")
        assert isinstance(failed.error, WorkCancelled)


async def test_a_worker_ends_after_an_item_suppressed_its_cancellation():
    began, ran = asyncio.Event(), []

    async def work(item):
        ran.append(item)
        began.set()
        try:
            await forever()
        except asyncio.CancelledError:
            return "swallowed"

    task = asyncio.create_task(results(range(100), work, concurrency=2))
    await began.wait()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ran == [0, 1]


async def test_all_items_share_what_prep_put_on_self():
    class Shared(Batch):
        def prep(self, shared):
            self.factor = 3
            return [1, 2]

        async def exec(self, item):
            return item * self.factor

    assert (await NodeFlow(start=Shared(concurrency=2)).run({}))["results"] == [3, 6]


async def test_an_async_exec_with_an_executor_raises():
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(InvalidGraph, match="def exec"):
            await results([1], executor=pool)
        with pytest.raises(InvalidOption, match="executor"):
            BatchNode(executor=pool, timeout=1)


async def test_short_sync_items_share_hops_to_the_thread(monkeypatch):
    hops = 0

    async def counted(*args, **kwargs):
        nonlocal hops
        hops += 1
        return await in_thread(*args, **kwargs)

    monkeypatch.setattr("stepwell.nodes.batch.chunk.in_thread", counted)
    assert await results(range(5000), lambda item: item, SyncBatch) == list(range(5000))
    assert hops < 500


async def test_a_sync_item_of_an_async_iterable_does_not_wait_for_the_next_one():
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def items():
        for number in range(5):
            yield number
            # The next item comes only when this one has run.
            await asyncio.wait_for(done.wait(), 10)
            done.clear()

    def work(item):
        loop.call_soon_threadsafe(done.set)
        return item

    assert await results(items(), work, SyncBatch, concurrency=2) == [0, 1, 2, 3, 4]


class Delayed(BatchNode):
    """Items that all take equally long; records the order in which they continue."""

    def __init__(self, log, number, length, **options):
        super().__init__(name=f"batch{number}", **options)
        self.log, self.number, self.length = log, number, length

    def prep(self, shared):
        return list(range(self.length))

    async def exec(self, item):
        self.log.append(("exec", self.number, item))
        await asyncio.sleep(0.05)
        self.log.append(("woke", self.number, item))

    def post(self, shared, items, results):
        self.log.append(("post", self.number))


@pytest.mark.parametrize("durable", [False, True], ids=["plain", "durable"])
@pytest.mark.parametrize("options", [{"concurrency": 5}, {"concurrency": 4, "max_retries": 2}], ids=repr)
@pytest.mark.parametrize("lengths", [(1, 3, 2, 4), (2, 0, 4, 1)], ids=repr)
async def test_batches_of_branches_continue_in_the_order_of_the_branches(lengths, options, durable):
    log = []
    branches = [Delayed(log, number, length, **options) for number, length in enumerate(lengths)]
    flow = linear(parallel(*branches), Node())
    await flow.run({}, storage=MemoryStorage() if durable else None)
    items = [(number, item) for number, length in enumerate(lengths) for item in range(length)]
    assert [entry[1:] for entry in log if entry[0] == "woke"] == items
    assert [entry[1:] for entry in log if entry[0] == "exec"] == items
    posts = [number for kind, number, *_ in log if kind == "post"]
    assert [number for number in posts if lengths[number]] == [n for n, length in enumerate(lengths) if length]


@pytest.mark.parametrize("kind", [list, iter], ids=["a list", "an iterator"])
async def test_sub_flows_of_items_continue_in_the_order_of_the_items(kind):
    log = []
    lengths = (1, 3, 2, 4)

    class Flows(BatchNode):
        def prep(self, shared):
            return kind(enumerate(lengths))

        async def exec(self, item):
            number, length = item
            await NodeFlow(start=Delayed(log, number, length, concurrency=length)).run()
            log.append(("end", number))

    await NodeFlow(start=Flows(concurrency=4)).run()
    assert [number for kind, number, *_ in log if kind == "end"] == [0, 1, 2, 3]


async def test_the_items_of_a_list_start_in_the_same_turn_of_the_loop_up_to_the_window():
    started = []
    turns = 0

    class Items(BatchNode):
        def prep(self, shared):
            return range(10)

        async def exec(self, item):
            started.append(turns)
            await asyncio.sleep(0.05)

    async def count():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    await NodeFlow(start=Items(concurrency=6)).run()
    counting.cancel()
    assert len(set(started[:6])) == 1
    assert started[6] > started[5]


@pytest.mark.parametrize("options", [{}, {"max_retries": 2}, {"concurrency": 3}], ids=repr)
async def test_an_empty_batch_starts_no_task(options, monkeypatch):
    class Items(BatchNode):
        def prep(self, shared):
            return []

        async def exec(self, item):
            raise AssertionError

    monkeypatch.setattr(WorkGroup, "create_task", None)
    await NodeFlow(start=Items(**options)).run()
    await NodeFlow(start=Items(**options)).run(storage=MemoryStorage())


async def test_items_that_are_cancelled_end_in_their_order():
    ended = []

    class Items(BatchNode):
        def prep(self, shared):
            return range(30)

        async def exec(self, item):
            try:
                await forever()
            finally:
                ended.append(item)

    task = asyncio.create_task(NodeFlow(start=Items(concurrency=30)).run())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == list(range(30))
