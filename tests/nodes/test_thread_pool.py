"""The threads of ``def exec``: a number of places, and a call that timed out keeps none of them."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from stepwell.errors import NodeTimeout
from stepwell.nodes import BatchNode, Failed, Node, NodeFlow
from stepwell.nodes.walk.thread_pool import SIZE, ThreadPool
from tests.until import wait_until


@pytest.fixture
def release():
    event = threading.Event()
    yield event
    event.set()


class Quick(Node):
    def exec(self, prep_res):
        return threading.current_thread().name

    def post(self, shared, prep_res, exec_res):
        shared["thread"] = exec_res


async def test_timed_out_calls_do_not_keep_others_from_a_thread(release):
    class Blocks(Node):
        def exec(self, prep_res):
            release.wait(60)

    flow = NodeFlow(start=Blocks(timeout=0.05))
    results = await asyncio.gather(*(flow.run() for _ in range(SIZE + 6)), return_exceptions=True)
    assert {type(result) for result in results} == {NodeTimeout}
    final = await asyncio.wait_for(NodeFlow(start=Quick()).run(), 20)
    assert final["thread"].startswith("stepwell")


async def test_timed_out_items_do_not_keep_others_of_their_batch_from_a_thread(release):
    class Batch(BatchNode):
        def prep(self, shared):
            return range(12)

        def exec(self, item):
            if item < 6:
                release.wait(60)
            return item

        def post(self, shared, items, results):
            shared["results"] = results

    batch = Batch(concurrency=2, timeout=0.6, on_error="skip")
    results = (await NodeFlow(start=batch).run())["results"]
    assert all(isinstance(result, Failed) for result in results[:6])
    assert results[6:] == [6, 7, 8, 9, 10, 11]


async def test_a_busy_default_executor_of_the_loop_does_not_matter(release):
    loop = asyncio.get_running_loop()
    busy = [loop.run_in_executor(None, release.wait, 60) for _ in range(64)]
    try:
        await asyncio.wait_for(NodeFlow(start=Quick()).run(), 20)
    finally:
        release.set()
        await asyncio.wait(busy)


def run_script(path: Path, text: str) -> str:
    path.write_text(text)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_thread_that_never_ends_does_not_keep_the_program_from_ending(tmp_path):
    script = """
import asyncio, time
from stepwell.errors import NodeTimeout
from stepwell.nodes import Node, NodeFlow

class Blocks(Node):
    def exec(self, prep_res):
        time.sleep(3600)

try:
    asyncio.run(NodeFlow(start=Blocks(timeout=0.1)).run())
except NodeTimeout:
    print("timed out")
"""
    assert run_script(tmp_path / "script.py", script) == "timed out\n"


def test_a_thread_that_ends_after_its_loop_was_closed_is_silent(tmp_path):
    script = """
import asyncio, threading
from stepwell.errors import NodeTimeout
from stepwell.nodes import Node, NodeFlow

release, ended = threading.Event(), threading.Event()

class Blocks(Node):
    def exec(self, prep_res):
        threading.current_thread().name = "blocked"
        release.wait()

try:
    asyncio.run(NodeFlow(start=Blocks(timeout=0.1)).run())
except NodeTimeout:
    release.set()
    for thread in threading.enumerate():
        if thread.name == "blocked":
            thread.join()
    print("ended")
"""
    assert run_script(tmp_path / "script.py", script) == "ended\n"


def test_a_forked_child_has_its_own_threads(tmp_path):
    script = """
import asyncio, os, warnings
from stepwell.nodes import Node, NodeFlow

class Quick(Node):
    def exec(self, prep_res):
        pass

asyncio.run(NodeFlow(start=Quick()).run())
# Python 3.12 warns if any thread is alive, idle ones included.
warnings.simplefilter("ignore", DeprecationWarning)
child = os.fork()
if child == 0:
    asyncio.run(asyncio.wait_for(NodeFlow(start=Quick()).run(), 20))
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run_script(tmp_path / "script.py", script) == "7\n"


async def test_a_thread_sees_the_context_of_its_run():
    variable = contextvars.ContextVar("variable", default="unset")
    seen = []

    class See(Node):
        def exec(self, prep_res):
            seen.append(variable.get())
            variable.set("changed in a thread")

    for value in ("one", "two"):
        variable.set(value)
        await NodeFlow(start=See()).run()
        assert variable.get() == value
    assert seen == ["one", "two"]


def test_no_more_calls_than_threads_run_at_once(release):
    pool = ThreadPool(3, "test-places")
    began = threading.Semaphore(0)

    def call():
        began.release()
        release.wait(60)

    futures = [pool.submit(call) for _ in range(8)]
    for _ in range(3):
        assert began.acquire(timeout=20)
    assert sum(future.running() for future in futures) == 3
    pool.abandon(futures[0])
    assert began.acquire(timeout=20)
    pool.abandon(futures[7])
    assert not began.acquire(timeout=0.05)
    release.set()
    for future in futures[:7]:
        future.result(20)
    with pytest.raises(CancelledError):
        futures[7].result(20)
    pool.close()


def threads_named(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


def wait_until_gone(name: str) -> None:
    wait_until(lambda: not threads_named(name))
    assert threads_named(name) == 0


def test_idle_threads_end(constants):
    constants(thread_pool_idle=0.05)
    pool = ThreadPool(4, "test-idle")
    for _ in range(2):
        assert [future.result(20) for future in [pool.submit(abs, -n) for n in range(20)]] == list(range(20))
        wait_until_gone("test-idle")


def test_a_closed_pool_ends_its_threads_at_once():
    pool = ThreadPool(4, "test-closed")
    assert pool.submit(abs, -1).result(20) == 1
    pool.close()
    wait_until_gone("test-closed")


def test_calls_one_after_the_other_need_one_thread():
    pool = ThreadPool(8, "test-one")
    for n in range(200):
        assert pool.submit(abs, -n).result(20) == n
    assert threads_named("test-one") == 1
    pool.close()


def test_an_abandoned_thread_ends_with_its_call(release):
    pool = ThreadPool(1, "test-abandoned")
    began = threading.Event()
    future = pool.submit(lambda: (began.set(), release.wait(60)))
    assert began.wait(20)
    pool.abandon(future)
    assert pool.submit(abs, -1).result(20) == 1
    pool.close()
    assert threads_named("test-abandoned") >= 1
    release.set()
    wait_until_gone("test-abandoned")
