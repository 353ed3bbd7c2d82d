"""Batches in executors: threads, processes, anything with ``submit``."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from concurrent.futures.thread import BrokenThreadPool
from pathlib import Path

import psutil
import pytest

from stepwell.errors import ExecutorError
from stepwell.nodes import BatchNode, Failed, NodeFlow, step
from stepwell.nodes.batch.executor import reason_of
from stepwell.storage import MemoryStorage
from tests.until import wait_until, yields


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
        case ("exit once", path):
            if not Path(path).exists():
                Path(path).touch()
                os._exit(1)
            return "survived"
        case ("wait for", path):
            wait_until(Path(path).exists)
            return "finished"
        case ("exit at go", folder):
            if Path(folder, "begun").exists():
                return "survived"
            Path(folder, "begun").touch()
            wait_until(Path(folder, "go").exists)
            os._exit(1)
        case "raise, then exit":
            if step().attempt > 1:
                os._exit(1)
            raise ValueError("raised in the worker")
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
    """An executor of another kind: each call runs in a new thread."""

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


async def test_an_item_that_cannot_be_pickled_raises(processes):
    one, failed, two = await run(processes, [1, threading.Lock(), 2], concurrency=1)
    assert (one, two) == (2, 4)
    assert isinstance(failed.error, ExecutorError)
    assert "item 1" in str(failed.error)


async def test_a_node_that_cannot_be_pickled_raises(processes):
    class Local(Away):
        pass

    flow = NodeFlow(start=Local(executor=processes))
    with pytest.raises(ExecutorError, match="the node itself"):
        await flow.run({"items": [1]})


def single_process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


@pytest.mark.parametrize("on_error", ["stop", "skip", "collect"])
@pytest.mark.parametrize("concurrency", [1, 3])
async def test_a_pool_that_breaks_ends_the_batch_under_every_policy(on_error, concurrency):
    with single_process() as pool:
        with pytest.raises(BrokenProcessPool) as caught:
            await run(pool, [1, "exit", *range(20)], on_error=on_error, concurrency=concurrency)
        assert any("another executor" in note for note in caught.value.__notes__)
        with pytest.raises(BrokenProcessPool):
            await run(pool, [1], on_error=on_error, max_retries=3)


async def test_a_pool_that_breaks_in_another_attempt_ends_the_batch():
    with single_process() as pool, pytest.raises(BrokenProcessPool):
        await run(pool, [1, "raise, then exit", 2], max_retries=3)


async def test_errors_of_items_before_the_pool_broke_are_raised_with_it():
    with single_process() as pool, pytest.raises(ExceptionGroup) as caught:
        await run(pool, ["raise", "exit", 1], on_error="collect", concurrency=1)
    assert [type(error) for error in caught.value.exceptions] == [ValueError, BrokenProcessPool]


class Pools:
    """Makes pools of processes, and keeps them."""

    def __init__(self) -> None:
        self.made: list[ProcessPoolExecutor] = []

    def __call__(self) -> ProcessPoolExecutor:
        self.made.append(ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("forkserver")))
        return self.made[-1]


@pytest.mark.parametrize("on_error", ["stop", "skip", "collect"])
@pytest.mark.parametrize("concurrency", [1, 3])
async def test_a_function_makes_a_new_pool_for_one_that_breaks(tmp_path, caplog, on_error, concurrency):
    pools = Pools()
    items = [1, ("exit once", str(tmp_path / "died")), *range(40)]
    results = await run(pools, items, on_error=on_error, concurrency=concurrency)
    assert results == [2, "survived", *(2 * n for n in range(40))]
    # One more if the first pool has ended the fork server, which is logged as another error.
    assert len(pools.made) == 2 + caplog.text.count("after BrokenExecutor")
    with pytest.raises(RuntimeError, match="after shutdown"):
        pools.made[-1].submit(os.getpid)


def test_a_pool_without_its_fork_server_is_broken():
    with ProcessPoolExecutor(1) as pool:
        assert type(reason_of(ConnectionRefusedError(), pool)) is BrokenExecutor
        refused = OSError("another error")
        assert reason_of(refused, pool) is refused


class RefusedPools(Pools):
    """Makes pools of processes. The first ones find that their fork server refuses connections."""

    def __init__(self, refused):
        super().__init__()
        self.refused = refused

    def __call__(self):
        pool = super().__call__()
        if len(self.made) <= self.refused:

            def submit(*args):
                raise ConnectionRefusedError

            pool.submit = submit
        return pool


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_a_batch_waits_until_the_fork_server_has_ended(constants, concurrency):
    constants(executor_pauses=(0.001, 0.002))
    pools = RefusedPools(refused=7)
    assert await run(pools, list(range(20)), concurrency=concurrency) == [2 * n for n in range(20)]
    assert len(pools.made) == 8
    pools = RefusedPools(refused=100)
    with pytest.raises(BrokenExecutor, match="its fork server has ended") as caught:
        await run(pools, list(range(20)), concurrency=concurrency)
    assert any("failed, not one of the items" in note for note in caught.value.__notes__)
    assert len(pools.made) <= 16


async def test_a_pool_that_breaks_in_another_attempt_is_made_anew(tmp_path):
    pools = Pools()
    results = await run(pools, [1, ("fails until", 2), ("exit once", str(tmp_path / "died")), 2], max_retries=3)
    assert results == [2, 2, "survived", 4]


@pytest.mark.parametrize("on_error", ["stop", "skip", "collect"])
async def test_an_item_that_breaks_every_pool_ends_the_batch(on_error):
    pools = Pools()
    with pytest.raises(BrokenProcessPool) as caught:
        await run(pools, [1, 2, "exit", *range(20)], on_error=on_error, concurrency=1)
    assert any("broke 3 times while it ran item 2" in note for note in caught.value.__notes__)
    assert len(pools.made) == 3


class LateWorkers(Pools):
    """Makes pools of two processes. The first pool breaks while its second process starts."""

    def __init__(self, folder, when):
        super().__init__()
        self.folder, self.when = folder, when
        #: The second process.
        self.pid = None

    def __call__(self):
        pool = super().__call__()
        if len(self.made) == 1:
            spawn, outer = pool._spawn_process, self

            class Registered(dict):
                def __setitem__(self, pid, process):
                    if self:
                        outer.pid = pid
                        outer.break_pool()
                    super().__setitem__(pid, process)

                def values(self):
                    # The thread of a pool of Python 3.11 iterates over the processes while submit() adds one.
                    return list(super().values())

            def late():
                if pool._processes:
                    # The first process runs the item that ends it.
                    wait_until((self.folder / "begun").exists)
                    if self.when == "before its start":
                        self.break_pool()
                spawn()

            pool._spawn_process = late
            if self.when == "after its start":
                pool._processes = Registered()
        return pool

    def break_pool(self):
        (self.folder / "go").touch()
        wait_until(lambda: self.made[0]._call_queue._reader.closed)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="a pool of Python 3.12 breaks before or after submit()")
@pytest.mark.parametrize("when", ["before its start", "after its start"])
async def test_a_pool_that_breaks_while_a_worker_starts_is_made_anew_and_leaves_no_worker(tmp_path, when):
    pools = LateWorkers(tmp_path, when)
    results = await run(pools, [("exit at go", str(tmp_path)), 1, 2], on_error="stop")
    assert results == ["survived", 2, 4]
    assert len(pools.made) == 2
    if pools.pid is not None:
        # The program would wait for it at its end.
        wait_until(lambda: not psutil.pid_exists(pools.pid))


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="a pool of Python 3.12 breaks before or after submit()")
async def test_a_given_pool_that_breaks_while_a_worker_starts_can_be_shut_down(tmp_path):
    pools = LateWorkers(tmp_path, "after its start")
    pool = pools()
    with pytest.raises(BrokenProcessPool):
        await run(pool, [("exit at go", str(tmp_path)), 1, 2])
    wait_until(lambda: not psutil.pid_exists(pools.pid))
    pool.shutdown()


@pytest.mark.skipif(hasattr(ProcessPoolExecutor, "kill_workers"), reason="this Python has a public method")
async def test_a_broken_pool_is_reported_although_its_workers_are_not_known():
    pool = Pools()()
    with pytest.raises(BrokenProcessPool):
        pool.submit(os._exit, 1).result()
    # Another version of Python may name it otherwise.
    del pool._processes
    with pytest.raises(BrokenProcessPool):
        await run(pool, [1, 2])


async def test_the_workers_of_a_broken_pool_are_killed_with_the_public_method_if_there_is_one():
    class Killed(ProcessPoolExecutor):
        times = 0

        def kill_workers(self):
            self.times += 1

    with Killed(1, mp_context=multiprocessing.get_context("forkserver")) as pool:
        with pytest.raises(BrokenProcessPool):
            await run(pool, ["exit"])
        assert pool.times == 1


async def test_a_given_pool_that_is_shut_down_finishes_its_other_jobs(tmp_path):
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("forkserver")) as pool:
        other = pool.submit(work, ("wait for", str(tmp_path / "go")))
        wait_until(other.running)
        # The pool takes one of its jobs, and cancels those that are queued.
        batch = asyncio.create_task(run(pool, [1, 2, 3, 4]))
        await asyncio.sleep(0.2)
        ending = asyncio.create_task(asyncio.to_thread(pool.shutdown, cancel_futures=True))
        await asyncio.sleep(0.2)
        (tmp_path / "go").touch()
        with pytest.raises(BrokenExecutor, match="shut down"):
            await batch
        await ending
        assert other.result(60) == "finished"


async def test_a_function_that_fails_ends_the_batch():
    def fails() -> Executor:
        raise OSError("no pool")

    with pytest.raises(OSError, match="no pool"):
        await run(fails, [1, 2])


class Noted(Away):
    """Notes the items that it runs in a file, and exits at item 30 unless ``survives``."""

    def __init__(self, path, survives, **options):
        super().__init__(name="noted", **options)
        self.path, self.survives = path, survives

    def exec(self, item):
        with self.path.open("a") as file:
            file.write(f"{item} ")
        return work("exit" if item == 30 and not self.survives else item)


async def test_after_a_broken_pool_a_resume_runs_only_the_items_without_a_result(tmp_path):
    notes = tmp_path / "ran"
    async with MemoryStorage() as storage:
        with single_process() as pool:
            flow = NodeFlow(start=Noted(notes, False, executor=pool, on_error="skip"), storage=storage)
            with pytest.raises(BrokenProcessPool):
                await flow.run({"items": list(range(40))}, flow_id="r")
        done = (await flow.status("r")).progress["noted"].done
        assert 8 <= done <= 30
        notes.unlink()
        with single_process() as pool:
            flow = NodeFlow(start=Noted(notes, True, executor=pool, on_error="skip"), storage=storage)
            assert (await flow.resume("r"))["results"] == [2 * n for n in range(40)]
    assert [int(item) for item in notes.read_text().split()] == list(range(done, 40))


async def test_a_node_that_cannot_be_pickled_skips_no_item(processes):
    class Local(Away):
        pass

    with pytest.raises(ExecutorError, match="the node itself"):
        await NodeFlow(start=Local(executor=processes, on_error="skip")).run({"items": [1, 2]})


class Unreadable(Away):
    """Can be pickled, but not read back."""

    def __reduce__(self):
        return work, ("raise",)


async def test_a_node_that_a_worker_cannot_read_skips_no_item(processes):
    with pytest.raises(ValueError, match="raised in the worker"):
        await NodeFlow(start=Unreadable(executor=processes, on_error="skip")).run({"items": [1, 2]})


def _fails_to_start() -> None:
    raise OSError("no licence for another thread")


async def test_a_pool_of_threads_that_breaks_ends_the_batch():
    with ThreadPoolExecutor(1, initializer=_fails_to_start) as pool:
        for _ in range(2):
            with pytest.raises(BrokenThreadPool):
                await run(pool, [1, 2, 3])


@pytest.mark.parametrize("kind", ["threads", "processes"])
async def test_an_executor_that_is_shut_down_ends_the_batch(kind):
    pool = ThreadPoolExecutor(1) if kind == "threads" else single_process()
    pool.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        await run(pool, [1, 2, 3])


class Cancelling(Executor):
    """What ``shutdown(cancel_futures=True)`` does to the work that has not begun."""

    def submit(self, fn, /, *args, **kwargs):
        future: Future = Future()
        future.cancel()
        return future


@pytest.mark.parametrize("on_error", ["stop", "skip", "collect"])
async def test_an_executor_that_cancels_its_work_ends_the_batch(on_error):
    with pytest.raises(BrokenExecutor, match="shut down"):
        await run(Cancelling(), [1, 2, 3], on_error=on_error)


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
        await yields(10)
        assert not task.done()
        task.cancel()
        await yields(10)
        assert not task.done()
        Gated.release.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(Gated.ran) <= 2
