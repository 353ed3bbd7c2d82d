"""Cancelling a run cancels and awaits everything below it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from stepwell.nodes import BatchNode, Node, NodeFlow, linear, parallel


class Tracked(Node):
    """Waits until it is cancelled, and takes its time to end."""

    def prep(self, shared):
        self.log = shared["log"]

    async def exec(self, item):
        self.log.append("began")
        try:
            await asyncio.sleep(60)
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
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await NodeFlow(start=TrackedBatch(concurrency=3)).run(shared)
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
    await asyncio.sleep(0.02)
    assert not task.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_an_error_in_a_thread_that_was_cancelled_is_told():
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


def test_an_interrupt_in_a_run_by_hand_ends_it():
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
