"""Batches in executors: threads, processes, anything with ``submit``."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import pytest

from stepwell.errors import ExecutorError
from stepwell.nodes import BatchNode, Failed, NodeFlow, step


class Unpicklable(Exception):
    """Can be pickled, but not read back."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def work(item):
    match item:
        case "raise":
            raise ValueError("raised in the worker")
        case "unreadable error":
            raise Unpicklable("this", "that")
        case "unpicklable result":
            return lambda: None
        case "exit":
            os._exit(1)
        case "where":
            return os.getpid(), threading.current_thread().name
        case "step":
            return step().id, step().attempt
        case ("fails until", attempt):
            if step().attempt < attempt:
                raise ValueError("not yet")
            return step().attempt
    return item * 2


class Away(BatchNode):
    def prep(self, shared):
        return shared["items"]

    def exec(self, item):
        return work(item)

    def post(self, shared, prep_res, exec_res):
        shared["results"] = exec_res


class Homemade(Executor):
    """An executor that is no pool of ours: each call runs in a new thread."""

    def submit(self, fn, /, *args, **kwargs):
        future: Future = Future()

        def run():
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run).start()
        return future


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.fixture(scope="module", params=["threads", "processes", "homemade"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    if request.param == "threads":
        with ThreadPoolExecutor(2) as pool:
            yield pool
    elif request.param == "processes":
        yield request.getfixturevalue("processes")
    else:
        yield Homemade()


async def run(executor, items, **options):
    options = {"concurrency": 2, "on_error": "skip", **options}
    node = Away(executor=executor, **options)
    return (await NodeFlow(start=node, name="away").run({"items": items}, flow_id="f"))["results"]


async def test_the_results_are_in_the_order_of_the_items(executor):
    assert await run(executor, range(3000)) == [n * 2 for n in range(3000)]


async def test_step_knows_the_item_in_the_worker(executor):
    assert await run(executor, ["step", "step"]) == [("f/Away/1/0", 1), ("f/Away/1/1", 1)]


async def test_each_item_gets_its_attempts(executor):
    items = [("fails until", n) for n in (1, 2, 3, 4)]
    first, second, third, fourth = await run(executor, items, max_retries=3)
    assert [first, second, third] == [1, 2, 3]
    assert isinstance(fourth, Failed)


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_an_error_comes_back_with_its_item(executor, concurrency):
    one, failed, two = await run(executor, [1, "raise", 2], concurrency=concurrency)
    assert (one, two) == (2, 4)
    assert failed.item == "raise"
    assert str(failed.error) == "raised in the worker"
    with pytest.raises(ValueError, match="raised in the worker"):
        await run(executor, [1, "raise", 2], on_error="stop", concurrency=concurrency)
    with pytest.raises(ExceptionGroup) as caught:
        await run(executor, ["raise", 1, "raise"], on_error="collect", concurrency=concurrency)
    assert len(caught.value.exceptions) == 2


def test_run_sync_uses_the_executor_too(executor):
    flow = NodeFlow(start=Away(executor=executor, concurrency=2))
    assert flow.run_sync({"items": [1, 2, 3]})["results"] == [2, 4, 6]


async def test_the_work_is_done_in_other_processes(processes):
    pids = {pid for pid, _ in await run(processes, ["where"] * 20)}
    assert pids
    assert os.getpid() not in pids


async def test_the_traceback_of_a_process_comes_back_as_text(processes):
    (failed,) = await run(processes, ["raise"])
    assert any("in work" in note for note in failed.error.__notes__)


async def test_an_error_that_cannot_be_read_back_breaks_neither_pool_nor_batch(processes):
    failed, one = await run(processes, ["unreadable error", 1])
    assert isinstance(failed.error, ExecutorError)
    assert "this and that" in "".join(failed.error.__notes__)
    assert one == 2


async def test_a_result_that_cannot_travel_is_the_error_of_its_item(processes):
    one, failed, two = await run(processes, [1, "unpicklable result", 2], concurrency=1)
    assert (one, two) == (2, 4)
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, ExecutorError)
    assert "the result of item 1" in str(failed.error)


async def test_an_item_that_cannot_travel_is_an_error_that_says_so(processes):
    one, failed, two = await run(processes, [1, threading.Lock(), 2], concurrency=1)
    assert (one, two) == (2, 4)
    assert isinstance(failed.error, ExecutorError)
    assert "item 1" in str(failed.error)


async def test_a_node_that_cannot_travel_is_an_error_that_says_so(processes):
    class Local(Away):
        pass

    flow = NodeFlow(start=Local(executor=processes))
    with pytest.raises(ExecutorError, match="the node itself"):
        await flow.run({"items": [1]})


async def test_a_dead_worker_process_is_the_error_of_its_items():
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        (failed,) = await run(pool, ["exit"], concurrency=1)
        assert isinstance(failed.error, BrokenProcessPool)
        with pytest.raises(BrokenProcessPool):
            await run(pool, [1], on_error="stop")


async def test_an_executor_that_is_shut_down_is_an_error_for_every_item():
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    results = await run(pool, [1, 2, 3])
    assert [type(failed.error) for failed in results] == [RuntimeError] * 3


async def test_the_executor_is_never_shut_down(executor):
    await run(executor, [1])
    assert await run(executor, [1]) == [2]


class Gated(Away):
    began = threading.Event()
    release = threading.Event()
    ran: list[int] = []

    def exec(self, item):
        self.ran.append(item)
        self.began.set()
        self.release.wait(10)
        return item


@pytest.mark.parametrize("own", [True, False], ids=["given threads", "own threads"])
async def test_cancelling_waits_for_the_threads_and_starts_no_further_item(own):
    Gated.began.clear()
    Gated.release.clear()
    Gated.ran.clear()
    with ThreadPoolExecutor(2) as pool:
        flow = NodeFlow(start=Gated(executor=pool if own else None, concurrency=2))
        task = asyncio.create_task(flow.run({"items": range(100)}))
        await asyncio.to_thread(Gated.began.wait, 10)
        task.cancel()
        await asyncio.sleep(0.02)
        assert not task.done()
        task.cancel()
        await asyncio.sleep(0.02)
        assert not task.done()
        Gated.release.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(Gated.ran) <= 2
