"""Cancelling a run cancels and awaits everything below it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading

import pytest

from stepwell import open_storage
from stepwell.errors import WorkCancelled
from stepwell.nodes import BatchNode, Node, NodeFlow, linear, parallel, step
from tests.until import forever, until, yields


class Tracked(Node):
    """Waits until it is cancelled, and takes its time to end."""

    def prep(self, shared):
        self.log = shared["log"]

    async def exec(self, item):
        self.log.append("began")
        try:
            await forever()
        finally:
            await asyncio.sleep(0)
            self.log.append("ended")


class TrackedBatch(BatchNode, Tracked):
    def prep(self, shared):
        self.log = shared["log"]
        return range(10)


@pytest.mark.parametrize(
    ("node", "count"),
    [
        pytest.param(Tracked(), 1, id="node"),
        pytest.param(Tracked(5, 60, timeout=60), 1, id="node with attempts and timeout"),
        pytest.param(linear(linear(Tracked)), 1, id="nested flows"),
        pytest.param(TrackedBatch(), 1, id="batch"),
        pytest.param(TrackedBatch(concurrency=4), 4, id="window"),
        pytest.param(TrackedBatch(concurrency=4, on_error="collect"), 4, id="window that collects"),
        pytest.param(parallel(Tracked(), linear(Tracked), TrackedBatch(concurrency=2)), 4, id="branches"),
    ],
)
async def test_everything_below_is_cancelled_and_awaited(node, count):
    shared = {"log": []}
    task = asyncio.create_task(NodeFlow(start=node).run(shared))
    while len(shared["log"]) < count:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert shared["log"] == ["began"] * count + ["ended"] * count
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_run_inside_a_timeout_ends_with_a_timeout_error():
    shared = {"log": []}

    async def expire(limit):
        while len(shared["log"]) < 3:
            await asyncio.sleep(0)
        limit.reschedule(asyncio.get_running_loop().time())

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60) as limit:
            expiring = asyncio.create_task(expire(limit))
            await NodeFlow(start=TrackedBatch(concurrency=3)).run(shared)
    await expiring
    assert shared["log"].count("ended") == 3


async def test_a_cancelled_wait_between_attempts_ends_at_once():
    began = asyncio.Event()

    class Fails(Node):
        async def exec(self, prep_res):
            began.set()
            raise ValueError("first")

    task = asyncio.create_task(NodeFlow(start=Fails(5, 3600)).run())
    await began.wait()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await asyncio.wait_for(task, 10)
    assert str(caught.value.__context__) == "first"


async def test_cancelling_waits_for_a_thread():
    began, release, ended = threading.Event(), threading.Event(), threading.Event()

    class Blocks(Node):
        def exec(self, prep_res):
            began.set()
            release.wait(10)
            ended.set()

    task = asyncio.create_task(NodeFlow(start=Blocks()).run())
    await asyncio.to_thread(began.wait, 10)
    task.cancel()
    await yields(10)
    assert not task.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_an_error_in_a_thread_that_was_cancelled_is_raised():
    began, release = threading.Event(), threading.Event()

    class Blocks(Node):
        def exec(self, prep_res):
            began.set()
            release.wait(10)
            raise ValueError("in the thread")

    task = asyncio.create_task(NodeFlow(start=Blocks(5)).run())
    await asyncio.to_thread(began.wait, 10)
    task.cancel()
    await asyncio.sleep(0)
    release.set()
    with pytest.raises(ValueError, match="in the thread"):
        await task


def test_an_interrupt_ends_a_run_without_a_loop():
    class Interrupts(Node):
        def exec(self, prep_res):
            raise KeyboardInterrupt

    class Never(Node):
        def prep(self, shared):
            raise AssertionError

    with pytest.raises(KeyboardInterrupt):
        linear(Interrupts, Never).run_sync()


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_system_exit_in_an_item_ends_the_run(concurrency):
    ended = []

    class Exits(BatchNode):
        def prep(self, shared):
            return range(4)

        async def exec(self, item):
            if item == 1:
                raise SystemExit(3)
            try:
                await asyncio.sleep(0.001)
            finally:
                ended.append(item)

    async def main():
        await NodeFlow(start=Exits(concurrency=concurrency, on_error="skip")).run()

    with pytest.raises(SystemExit):
        asyncio.run(main())
    assert ended == [0]


class Failing(BatchNode):
    def prep(self, shared):
        return [1, 2, 3]

    async def exec(self, item):
        raise ConnectionError(item)


class Flaky(Node):
    """Succeeds at its third attempt."""

    async def exec(self, prep_res):
        if step().attempt < 3:
            raise OSError("flaky")

    def post(self, shared, prep_res, exec_res):
        shared["attempts"] = "enough"


@pytest.mark.parametrize(
    "flow",
    [
        pytest.param(NodeFlow(start=Failing(concurrency=2)), id="batch"),
        pytest.param(NodeFlow(start=Failing(concurrency=2, on_error="collect")), id="collected"),
        pytest.param(NodeFlow(start=parallel(Failing(), Failing(concurrency=2))), id="branches"),
    ],
)
async def test_a_failure_leaves_no_cancellation_on_its_task(flow):
    with pytest.raises((ConnectionError, ExceptionGroup)):
        await flow.run()
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0
    assert await NodeFlow(start=Flaky(max_retries=3)).run() == {"attempts": "enough"}


async def fails_inside_a_task_group(error: Exception) -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise error

    async with asyncio.TaskGroup() as group:
        group.create_task(fail())
        group.create_task(forever())


async def test_a_node_whose_task_group_failed_is_tried_again():
    class Grouped(Node):
        async def exec(self, prep_res):
            if step().attempt < 3:
                await fails_inside_a_task_group(OSError())

        def post(self, shared, prep_res, exec_res):
            shared["done"] = True

    assert await NodeFlow(start=Grouped(max_retries=3)).run() == {"done": True}


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("storage", [None, "memory://"])
async def test_items_that_handle_a_failed_task_group_continue(concurrency, storage):
    class Grouped(BatchNode):
        def prep(self, shared):
            return range(5)

        async def exec(self, item):
            with contextlib.suppress(ExceptionGroup):
                await fails_inside_a_task_group(OSError())
            return item

        def post(self, shared, prep_res, results):
            shared["results"] = results

    options = {} if storage is None else {"storage": open_storage(storage)}
    flow = NodeFlow(start=Grouped(concurrency=concurrency, timeout=60))
    assert await flow.run(**options) == {"results": [0, 1, 2, 3, 4]}


async def test_a_task_that_survived_a_cancellation_can_run_flows():
    async def stubborn():
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        assert task.cancelling() == 1
        return await NodeFlow(start=Flaky(max_retries=3)).run()

    assert await asyncio.create_task(stubborn()) == {"attempts": "enough"}


@pytest.mark.parametrize("storage", [None, "memory://"])
async def test_a_node_that_is_cancelled_from_inside_has_failed(storage):
    class Met(Node):
        async def exec(self, prep_res):
            task = asyncio.create_task(forever())
            task.cancel()
            await task

    flow = NodeFlow(start=Met(), name="met")
    if storage is None:
        with pytest.raises(WorkCancelled, match="node 'Met'"):
            await flow.run()
        return
    async with open_storage(storage) as kept:
        with pytest.raises(WorkCancelled, match="node 'Met'"):
            await flow.run(storage=kept, flow_id="r")
        found = await flow.status("r", storage=kept)
        assert (found.status, [error.type for error in found.errors]) == ("failed", ["WorkCancelled"])


class Slow(Node):
    async def exec(self, prep_res):
        await forever()


class Timed(BatchNode):
    """Each item gives an inner run only so long."""

    def prep(self, shared):
        return [1, 2]

    async def exec(self, item):
        try:
            async with asyncio.timeout(0.02):
                await NodeFlow(start=Slow()).run({})
        except TimeoutError:
            return "too late"

    def post(self, shared, prep_res, results):
        shared["results"] = results


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_timeout_around_a_run_inside_an_item_is_a_timeout(concurrency):
    flow = NodeFlow(start=Timed(concurrency=concurrency, max_retries=2))
    assert await flow.run() == {"results": ["too late", "too late"]}
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await NodeFlow(start=TimedOut(concurrency=concurrency)).run()


class TimedOut(Timed):
    async def exec(self, item):
        await NodeFlow(start=Slow()).run({})


async def test_a_cancellation_that_was_pending_when_the_run_began_cancels_it():
    async def cancelled_before():
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await NodeFlow(start=Slow(max_retries=3)).run()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(cancelled_before())


async def test_a_cancellation_is_not_mistaken_for_that_of_a_task_group():
    class Grouped(Node):
        attempts = 0

        async def exec(self, prep_res):
            type(self).attempts += 1
            async with asyncio.TaskGroup() as group:
                group.create_task(fails_when_cancelled())

    async def fails_when_cancelled():
        try:
            await forever()
        finally:
            raise ValueError("cleaning up failed")

    with pytest.raises((ExceptionGroup, TimeoutError)):
        async with asyncio.timeout(0.02):
            await NodeFlow(start=Grouped(max_retries=3)).run()
    assert Grouped.attempts == 1


def test_items_that_the_end_of_the_program_cancelled_are_not_skipped(tmp_path):
    begun: list[int] = []
    done: list[int] = []
    waits = True

    class Items(BatchNode):
        def prep(self, shared):
            return range(8)

        async def exec(self, item):
            begun.append(item)
            if waits:
                await forever()
            done.append(item)
            return item

        def post(self, shared, prep_res, results):
            shared["results"] = results

    flow = NodeFlow(start=Items(concurrency=3, on_error="skip"), name="items")

    async def ends_early():
        storage = open_storage(f"sqlite:///{tmp_path}/runs.db")
        background = asyncio.create_task(flow.run(storage=storage, flow_id="r"))
        await until(lambda: len(begun) >= 3)
        assert not background.done()

    async def resumes():
        async with open_storage(f"sqlite:///{tmp_path}/runs.db") as storage:
            return await flow.resume("r", storage=storage)

    # Tasks and items that still run when the loop ends are cancelled, in any order.
    asyncio.run(ends_early())
    waits = False
    assert asyncio.run(resumes()) == {"results": list(range(8))}
    assert sorted(done) == list(range(8))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with 3.12")
async def test_eager_tasks_belong_to_their_group_before_they_run():
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]

    class Quick(BatchNode):
        def prep(self, shared):
            return range(1000)

        async def exec(self, item):
            return item

        def post(self, shared, prep_res, results):
            shared["sum"] = sum(results)

    assert await NodeFlow(start=Quick(concurrency=500)).run() == {"sum": 499500}
