"""Attempts, waits, timeouts and fallbacks."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import pytest

from stepwell.errors import InvalidGraph, InvalidOption, NodeTimeout
from stepwell.nodes import BatchNode, Failed, Node, NodeFlow, linear, step
from stepwell.nodes.graph.policy import ExecPolicy
from tests.until import forever


class Flaky(Node):
    """Fails until its attempt number is high enough."""

    succeeds_at = 3

    def prep(self, shared):
        shared["preps"] = shared.get("preps", 0) + 1
        return shared

    def exec(self, shared):
        shared.setdefault("attempts", []).append(step().attempt)
        if step().attempt < self.succeeds_at:
            raise ValueError(f"attempt {step().attempt}")
        return "worked"

    def post(self, shared, prep_res, exec_res):
        shared["result"] = exec_res
        shared["after"] = step().attempt


class AsyncFlaky(Flaky):
    async def exec(self, shared):
        await asyncio.sleep(0)
        return Flaky.exec(self, shared)


@pytest.mark.parametrize("kind", [Flaky, AsyncFlaky])
async def test_max_retries_counts_all_attempts(kind):
    shared = await NodeFlow(start=kind(max_retries=3)).run({})
    assert shared == {"preps": 1, "attempts": [1, 2, 3], "result": "worked", "after": 1}
    with pytest.raises(ValueError, match="attempt 2"):
        await NodeFlow(start=kind(max_retries=2)).run(shared := {})
    assert shared["attempts"] == [1, 2]


def test_retries_work_without_a_loop():
    assert NodeFlow(start=Flaky(3, 0.001)).run_sync({})["attempts"] == [1, 2, 3]


@pytest.mark.parametrize(
    "options",
    [
        {"max_retries": 0},
        {"max_retries": True},
        {"max_retries": 1.5},
        {"wait": -1},
        {"wait": float("nan")},
        {"backoff": 0.5},
        {"jitter": -1},
        {"timeout": 0},
        {"timeout": "1"},
        {"retry_on": ValueError()},
        {"retry_on": (ValueError, KeyboardInterrupt)},
    ],
)
def test_an_invalid_setting_raises(options):
    with pytest.raises(InvalidOption, match=f"{next(iter(options))}="):
        Node(**options)


def test_max_retries_and_wait_are_positional_as_in_pocketflow():
    node = Node(3, 10)
    assert (node.max_retries, node.wait) == (3, 10)


def test_a_class_may_set_what_its_nodes_get_as_arguments():
    class Careful(Node):
        max_retries, wait, timeout, retry_on = 3, 0.2, 5.0, (OSError, ValueError)

    class Hasty(Careful):
        wait = 0

    class Defaults:
        backoff = 2

    class Mixed(Defaults, Hasty):
        pass

    class Items(BatchNode):
        max_retries = 2

    node = Careful()
    assert (node.max_retries, node.wait, node.timeout, node.retry_on) == (3, 0.2, 5.0, (OSError, ValueError))
    assert node._policy.max_retries == 3
    assert (Careful(1).max_retries, Careful(wait=0).wait) == (1, 0)
    assert (Hasty().max_retries, Hasty().wait, Mixed().backoff, Mixed().wait, Items().max_retries) == (3, 0, 2, 0, 2)
    node.max_retries = 4
    assert (node._policy.max_retries, Node().max_retries) == (4, 1)

    class Wrong(Node):
        max_retries = 0

    with pytest.raises(InvalidOption, match="max_retries=0"):
        Wrong()


async def test_an_exec_is_tried_as_often_as_its_class_says():
    calls = []

    class Flaky(Node):
        max_retries = 3

        async def exec(self, prep_res):
            calls.append(prep_res)
            raise OSError

    with pytest.raises(OSError):
        await linear(Flaky()).run({})
    assert len(calls) == 3


def test_a_method_named_like_a_setting_stays_a_method():
    class Waits(Node):
        def wait(self):
            return "waited"

    assert (Waits().wait(), Waits()._policy.wait) == ("waited", 0)


def test_waits_grow_by_the_backoff_and_vary_by_the_jitter():
    policy = ExecPolicy(max_retries=10, wait=2, backoff=3)
    assert [policy.delay(n) for n in (1, 2, 3)] == [2, 6, 18]
    random.seed(1)
    delays = [ExecPolicy(max_retries=10, wait=2, jitter=0.5).delay(1) for _ in range(100)]
    assert all(2 <= delay <= 2.5 for delay in delays)
    assert len(set(delays)) > 50
    assert ExecPolicy(max_retries=10**6, wait=1, backoff=10).delay(10**6) > 0


async def test_between_attempts_it_waits(monkeypatch):
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    monkeypatch.setattr("stepwell.nodes.walk.runner.asyncio.sleep", sleep)
    await NodeFlow(start=Flaky(3, 5, backoff=2)).run({})
    assert waits == [5, 10]


def test_without_a_loop_it_waits_in_the_calling_thread(monkeypatch):
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    NodeFlow(start=Flaky(3, 5, backoff=2)).run_sync({})
    assert waits == [5, 10]


async def test_an_error_that_retry_on_does_not_name_is_not_tried_again():
    shared = {}
    with pytest.raises(ValueError):
        await NodeFlow(start=Flaky(5, retry_on=(KeyError, OSError))).run(shared)
    assert shared["attempts"] == [1]


@pytest.mark.parametrize("hook", ["prep", "post"])
async def test_only_exec_is_retried(hook):
    calls = []

    class Fails(Node):
        pass

    def fail(self, *args):
        calls.append(hook)
        raise ValueError

    setattr(Fails, hook, fail)
    with pytest.raises(ValueError):
        await NodeFlow(start=Fails(max_retries=5)).run()
    assert calls == [hook]


class Saved(Flaky):
    succeeds_at = 100

    def exec_fallback(self, prep_res, error):
        return f"fallback after {error}"


class AsyncSaved(Saved):
    async def exec_fallback(self, prep_res, error):
        await asyncio.sleep(0)
        return f"fallback after {error}"


@pytest.mark.parametrize("kind", [Saved, AsyncSaved])
@pytest.mark.parametrize("retries", [1, 2])
async def test_after_the_last_attempt_the_fallback_gives_the_result(kind, retries):
    shared = await NodeFlow(start=kind(max_retries=retries)).run({})
    assert shared["result"] == f"fallback after attempt {retries}"
    assert shared["attempts"] == list(range(1, retries + 1))


def test_the_fallback_works_without_a_loop():
    assert NodeFlow(start=Saved(2)).run_sync({})["result"] == "fallback after attempt 2"


async def test_what_the_fallback_raises_carries_the_error_before():
    class Worse(Saved):
        def exec_fallback(self, prep_res, error):
            raise KeyError("worse")

    with pytest.raises(KeyError) as caught:
        await NodeFlow(start=Worse(inline=True)).run({})
    assert str(caught.value.__context__) == "attempt 1"


async def test_an_attempt_that_takes_too_long_is_cancelled_and_tried_again():
    cancelled = []

    class Slow(Node):
        async def exec(self, prep_res):
            if step().attempt == 1:
                try:
                    await forever()
                finally:
                    cancelled.append(step().attempt)
            return "second"

        def post(self, shared, prep_res, exec_res):
            shared["result"] = exec_res

    assert await NodeFlow(start=Slow(2, timeout=0.02)).run({}) == {"result": "second"}
    assert cancelled == [1]


async def test_a_timeout_is_a_timeout_error_with_fields():
    class Slow(Node):
        async def exec(self, prep_res):
            await forever()

    with pytest.raises(TimeoutError) as caught:
        await NodeFlow(start=Slow(timeout=0.01)).run()
    assert isinstance(caught.value, NodeTimeout)
    assert (caught.value.node, caught.value.timeout) == ("Slow", 0.01)


async def test_a_timeout_error_raised_by_exec_is_not_replaced():
    class Own(Node):
        async def exec(self, prep_res):
            raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine") as caught:
        await NodeFlow(start=Own(timeout=60)).run()
    assert type(caught.value) is TimeoutError


async def test_the_timeout_of_a_sync_exec_abandons_its_thread():
    release, ended = threading.Event(), threading.Event()

    class Blocks(Node):
        def exec(self, prep_res):
            release.wait(10)
            ended.set()

    try:
        with pytest.raises(NodeTimeout):
            await NodeFlow(start=Blocks(timeout=0.02)).run()
        assert not ended.is_set()
    finally:
        release.set()
    assert ended.wait(10)


def test_a_timeout_works_with_run_sync():
    class Slow(Node):
        async def exec(self, prep_res):
            await forever()

    with pytest.raises(NodeTimeout):
        NodeFlow(start=Slow(timeout=0.01)).run_sync()


def test_a_timeout_that_could_not_interrupt_raises():
    with pytest.raises(InvalidGraph, match="inline"):
        NodeFlow(start=Flaky(timeout=1, inline=True)).run_sync({})


class FailsTwice(BatchNode):
    """Each item fails twice; notes the attempts of each."""

    def prep(self, shared):
        self.attempts = shared["attempts"] = {}
        return range(3)

    async def exec(self, item):
        self.attempts.setdefault(item, []).append(step().attempt)
        await asyncio.sleep(0)
        if step().attempt < 3:
            raise ValueError(item)
        return item

    def post(self, shared, prep_res, exec_res):
        shared["results"] = exec_res


class FailsTwiceInThreads(FailsTwice):
    def exec(self, item):
        self.attempts.setdefault(item, []).append(step().attempt)
        if step().attempt < 3:
            raise ValueError(item)
        return item


@pytest.mark.parametrize("kind", [FailsTwice, FailsTwiceInThreads])
@pytest.mark.parametrize("concurrency", [1, 3])
async def test_each_of_several_failing_items_gets_its_full_number_of_attempts(kind, concurrency):
    shared = await NodeFlow(start=kind(3, concurrency=concurrency)).run({})
    assert shared["attempts"] == {0: [1, 2, 3], 1: [1, 2, 3], 2: [1, 2, 3]}
    assert shared["results"] == [0, 1, 2]
    with pytest.raises(ExceptionGroup) as caught:
        await NodeFlow(start=kind(2, concurrency=concurrency, on_error="collect")).run(shared)
    assert sorted(error.args[0] for error in caught.value.exceptions) == [0, 1, 2]
    assert shared["attempts"] == {0: [1, 2], 1: [1, 2], 2: [1, 2]}


async def test_the_timeout_counts_for_each_item_by_itself():
    class Items(BatchNode):
        def prep(self, shared):
            return [0, 60, 0]

        async def exec(self, seconds):
            await asyncio.sleep(seconds)
            return seconds

        def post(self, shared, prep_res, exec_res):
            shared["results"] = exec_res

    for concurrency in (1, 3):
        flow = NodeFlow(start=Items(timeout=0.02, concurrency=concurrency, on_error="skip"))
        first, second, third = (await flow.run({}))["results"]
        assert (first, third) == (0, 0)
        assert isinstance(second, Failed)
        assert isinstance(second.error, NodeTimeout)


async def test_the_timeout_of_a_sync_item_counts_for_each_item_by_itself():
    release = threading.Event()

    class Items(BatchNode):
        def prep(self, shared):
            return [False, True, False]

        def exec(self, blocks):
            if blocks:
                release.wait(10)
            return step().item

        def post(self, shared, prep_res, exec_res):
            shared["results"] = exec_res

    try:
        shared = await NodeFlow(start=Items(timeout=1, concurrency=2, on_error="skip")).run({})
    finally:
        release.set()
    assert shared["results"][0] == 0
    assert isinstance(shared["results"][1].error, NodeTimeout)
    assert shared["results"][2] == 2


async def test_a_cancelled_exec_that_fails_on_its_way_out_is_not_tried_again():
    attempts = []
    began = asyncio.Event()

    class Stubborn(Node):
        async def exec(self, prep_res):
            attempts.append(step().attempt)
            began.set()
            try:
                await forever()
            except asyncio.CancelledError:
                raise ValueError("on the way out") from None

    task = asyncio.create_task(linear(Stubborn(5)).run())
    await began.wait()
    task.cancel()
    with pytest.raises(ValueError, match="on the way out"):
        await task
    assert attempts == [1]
