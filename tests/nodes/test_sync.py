"""def and async def hooks, threads, and runs without a loop."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading

import pytest

import stepwell
from stepwell.errors import InsideLoop, UsageError
from stepwell.nodes import BatchNode, Node, NodeFlow, linear, parallel
from tests.nodes.flows import A, B


class Where(Node):
    """Notes the thread that each hook runs in."""

    def prep(self, shared):
        return threading.current_thread()

    def exec(self, prep_res):
        return threading.current_thread()

    def post(self, shared, prep_res, exec_res):
        shared["threads"] = prep_res, exec_res, threading.current_thread()


class Async(Node):
    async def prep(self, shared):
        await asyncio.sleep(0)
        return shared["n"]

    async def exec(self, n):
        await asyncio.sleep(0)
        return n + 1

    async def post(self, shared, prep_res, exec_res):
        await asyncio.sleep(0)
        shared["n"] = exec_res


async def test_every_hook_may_be_an_async_def():
    assert await linear(Async(), Async()).run({"n": 0}) == {"n": 2}


async def test_sync_and_async_hooks_mix():
    class Mixed(Async):
        def exec(self, n):
            return n + 10

    assert await linear(Async(), Mixed(), Async()).run({"n": 0}) == {"n": 12}


async def test_a_sync_exec_goes_to_a_thread_and_prep_and_post_run_inline():
    here = threading.current_thread()
    prep, work, post = (await NodeFlow(start=Where()).run({}))["threads"]
    assert prep is post is here
    assert work is not here


async def test_an_inline_exec_stays_on_the_loop():
    here = threading.current_thread()
    assert (await NodeFlow(start=Where(inline=True)).run({}))["threads"] == (here, here, here)


def test_without_async_work_run_sync_runs_in_the_callers_thread():
    here = threading.current_thread()
    assert NodeFlow(start=Where()).run_sync({})["threads"] == (here, here, here)


async def test_without_async_work_run_sync_works_inside_a_running_loop_too():
    here = threading.current_thread()
    assert NodeFlow(start=Where()).run_sync({})["threads"] == (here, here, here)


def test_with_async_work_run_sync_uses_the_librarys_background_loop():
    class Loop(Node):
        async def exec(self, prep_res):
            return threading.current_thread().name, asyncio.get_running_loop()

        def post(self, shared, prep_res, exec_res):
            shared["seen"] = exec_res

    name, loop = NodeFlow(start=Loop()).run_sync({})["seen"]
    assert name == "stepwell-loop"
    assert NodeFlow(start=Loop()).run_sync({})["seen"][1] is loop


@pytest.mark.parametrize(
    "node",
    [
        pytest.param(Async(), id="async def"),
        pytest.param(BatchNode(concurrency=2), id="items at once"),
        pytest.param(Node(timeout=1), id="timeout"),
        pytest.param(parallel(A, B), id="branches"),
    ],
)
async def test_run_sync_that_needs_a_loop_raises_inside_a_running_loop(node):
    with pytest.raises(InsideLoop, match=r"await words\.run"):
        NodeFlow(start=node, name="words").run_sync({"n": 0})


def test_run_sync_returns_the_callers_dict_from_the_background_loop_too():
    shared = {"n": 0}
    assert NodeFlow(start=Async()).run_sync(shared) is shared
    assert shared == {"n": 1}


def test_stepwell_sync_runs_a_flow():
    assert stepwell.sync(NodeFlow(start=Async()).run({"n": 0})) == {"n": 1}


async def test_a_def_that_gives_a_coroutine_is_as_good_as_an_async_def():
    class Decorated(Node):
        async def work(self, n):
            await asyncio.sleep(0)
            return n + 1

        def prep(self, shared):
            return self.work(shared["n"])

        def exec(self, n):
            return self.work(n)

        def post(self, shared, prep_res, exec_res):
            shared["n"] = exec_res

    assert await NodeFlow(start=Decorated()).run({"n": 0}) == {"n": 2}


def test_a_coroutine_that_suspends_in_a_run_without_a_loop_raises():
    class Hidden(Node):
        def prep(self, shared):
            return self.work()

        async def work(self):
            await asyncio.sleep(0)

    with pytest.raises(UsageError, match="declare the hook async def"):
        NodeFlow(start=Hidden()).run_sync()


async def test_a_hook_may_be_a_partial_or_sit_on_the_instance():
    async def work(extra, n):
        return n + extra

    node = Async()
    node.exec = functools.partial(work, 5)  # type: ignore[method-assign]
    assert await NodeFlow(start=node).run({"n": 0}) == {"n": 5}


async def test_the_thread_sees_the_callers_context():
    var = contextvars.ContextVar("var", default="outside")

    class Read(Node):
        def exec(self, prep_res):
            return var.get()

        def post(self, shared, prep_res, exec_res):
            shared["var"] = exec_res

    var.set("inside")
    assert await NodeFlow(start=Read()).run({}) == {"var": "inside"}


async def test_a_stop_iteration_from_a_thread_does_not_hang():
    class Stops(Node):
        def exec(self, prep_res):
            raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(NodeFlow(start=Stops()).run(), 10)


async def test_many_runs_of_one_flow_at_once_do_not_mix():
    flow = linear(Async(), Async())
    finals = await asyncio.gather(*(flow.run({"n": n}) for n in range(50)))
    assert [final["n"] for final in finals] == [n + 2 for n in range(50)]
