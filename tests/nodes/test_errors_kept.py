"""Every policy raises or keeps all errors of items and branches."""

from __future__ import annotations

import asyncio
import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest

from stepwell import MemoryStorage
from stepwell.errors import MergeConflict, RunFailed
from stepwell.nodes import BatchNode, Failed, Node, NodeFlow, parallel, worker
from tests.until import forever


class Oops(Exception):
    """The error of one item or branch."""


def everything(error: BaseException | None, seen: set[int] | None = None) -> set[BaseException]:
    """All errors that a raised one carries: its parts, causes and contexts."""
    seen = set() if seen is None else seen
    if error is None or id(error) in seen:
        return set()
    seen.add(id(error))
    found = {error} | everything(error.__context__, seen) | everything(error.__cause__, seen)
    for part in getattr(error, "exceptions", ()):
        found |= everything(part, seen)
    return found


def names(errors) -> list[str]:
    return sorted(str(error) for error in errors if isinstance(error, Oops))


class Items(BatchNode):
    """Fails for the items in ``bad``, on every attempt."""

    def prep(self, shared):
        self.bad, self.raised = shared["bad"], shared["raised"]
        return range(6)

    def exec(self, item):
        if item in self.bad:
            error = Oops(item)
            self.raised.append(error)
            raise error
        return item

    def post(self, shared, prep_res, exec_res):
        shared["results"] = exec_res


class AsyncItems(Items):
    async def exec(self, item):
        # All of a window fail in the same turn of the loop.
        await asyncio.sleep(0)
        return Items.exec(self, item)


def with_fallback(kind):
    class WithFallback(kind):
        def exec_fallback(self, prep_res, error):
            worse = Oops(f"{error} fallback")
            self.raised.append(worse)
            raise worse

    return WithFallback


@pytest.mark.parametrize("where", ["inline", "async", "thread", "executor"])
@pytest.mark.parametrize("fallback", ["no fallback", "fallback raises"])
@pytest.mark.parametrize("on_error", ["stop", "collect", "skip"])
async def test_every_error_of_an_item_arrives(on_error, fallback, where):
    kind = AsyncItems if where == "async" else Items
    if fallback == "fallback raises":
        kind = with_fallback(kind)
    bad_ones = [{0}, {5}, {1, 2}, {0, 1, 2, 3, 4, 5}]
    for concurrency, retries, bad, watched in itertools.product([1, 3, 6], [1, 2], bad_ones, [False, True]):
        pool = ThreadPoolExecutor(3) if where == "executor" else None
        node = kind(retries, concurrency=concurrency, on_error=on_error, inline=where == "inline", executor=pool)
        shared = {"bad": bad, "raised": []}
        events = []
        error = None
        try:
            await NodeFlow(start=node).run(shared, on_event=events.append if watched else None)
        except Exception as caught:
            error = caught
        finally:
            if pool is not None:
                pool.shutdown()
        check(on_error, shared, error)
        if watched:
            told = {event.error for event in events if event.kind in ("item.failed", "item.retried")}
            if on_error == "stop":
                assert error in told
            else:
                # The error before a fallback is the context of the error that the fallback raised.
                assert set(shared["raised"]) <= told | {error.__context__ for error in told}


def check(on_error, shared, error):
    # Only the last error of each item counts; the earlier ones were retried.
    last = {str(raised).split()[0]: raised for raised in shared["raised"]}
    if on_error == "skip":
        assert error is None
        failed = [result for result in shared["results"] if isinstance(result, Failed)]
        assert {result.error for result in failed} == set(last.values())
        assert [result.item for result in failed] == sorted(shared["bad"])
        good = [result for result in shared["results"] if not isinstance(result, Failed)]
        assert good == sorted(set(range(6)) - shared["bad"])
    elif on_error == "collect":
        assert isinstance(error, ExceptionGroup)
        assert set(error.exceptions) == set(last.values())
        assert len(error.exceptions) == len(shared["bad"])
    else:
        assert isinstance(error, Oops)
        assert error in last.values()
        assert set(last.values()) <= everything(error)


class Branch(Node):
    def __init__(self, bad: bool, **options):
        super().__init__(**options)
        self.bad = bad

    async def exec(self, prep_res):
        await asyncio.sleep(0)
        if self.bad:
            raise Oops(self.name)


@pytest.mark.parametrize("bad", list(itertools.product([False, True], repeat=3)), ids=str)
@pytest.mark.parametrize("on_error", ["stop", "collect", "skip"])
async def test_every_error_of_a_branch_arrives(on_error, bad):
    seen = {}

    class Last(Node):
        def post(self, shared, prep_res, exec_res):
            shared["ended"] = True

    branches = parallel(*(Branch(is_bad, name=f"b{n}") for n, is_bad in enumerate(bad)), on_error=on_error)
    branches >> Last()
    branches.post = lambda shared, prep_res, exec_res: seen.update(outcomes=exec_res)  # type: ignore[method-assign]
    expected = [f"b{n}" for n, is_bad in enumerate(bad) if is_bad]
    flow = NodeFlow(start=branches)
    if not expected or on_error == "skip":
        assert await flow.run({}) == {"ended": True}
        failed = [outcome for outcome in seen["outcomes"] if isinstance(outcome, Failed)]
        assert names(outcome.error for outcome in failed) == expected
    else:
        with pytest.raises(ExceptionGroup if on_error == "collect" else Oops) as caught:
            await flow.run({})
        assert names(everything(caught.value)) == expected


@pytest.mark.parametrize("on_error", ["stop", "collect", "skip"])
@pytest.mark.parametrize("concurrency", [1, 2])
async def test_errors_survive_an_iterable_that_fails_after_them(on_error, concurrency):
    class Breaks(Items):
        def prep(self, shared):
            super().prep(shared)
            return self.items()

        def items(self):
            yield 0
            yield 1
            raise Oops("iterable")

        async def exec(self, item):
            if item == 0:
                raise Oops("item")

    with pytest.raises((Oops, ExceptionGroup)) as caught:
        await NodeFlow(start=Breaks(on_error=on_error, concurrency=concurrency)).run({"bad": {0}, "raised": []})
    assert "item" in names(everything(caught.value))
    if on_error != "stop":
        assert names(everything(caught.value)) == ["item", "iterable"]


@pytest.mark.parametrize("on_error", ["collect", "skip"])
async def test_errors_survive_a_cancellation_after_them(on_error):
    failed, forever = asyncio.Event(), asyncio.Event()

    class Hangs(BatchNode):
        def prep(self, shared):
            return range(2)

        async def exec(self, item):
            if item == 0:
                failed.set()
                raise Oops("item")
            await forever.wait()

    task = asyncio.create_task(NodeFlow(start=Hangs(on_error=on_error, concurrency=2)).run())
    await failed.wait()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert names(everything(caught.value)) == ["item"]


async def test_errors_of_siblings_that_fail_while_they_are_cancelled_are_kept():
    began = asyncio.Event()

    class Cleanup(BatchNode):
        def prep(self, shared):
            return range(3)

        async def exec(self, item):
            if item == 0:
                await began.wait()
                raise Oops("first")
            if item == 2:
                began.set()
            try:
                await forever()
            finally:
                raise Oops(f"cleanup {item}")

    with pytest.raises(Oops, match="first") as caught:
        await NodeFlow(start=Cleanup(concurrency=3)).run()
    assert names(everything(caught.value)) == ["cleanup 1", "cleanup 2", "first"]


async def test_errors_of_branches_survive_a_merge_conflict():
    class Writes(Node):
        def post(self, shared, prep_res, exec_res):
            shared["x"] = object()

    for on_error in ("collect", "skip"):
        branches = parallel(Writes(), Writes(), Branch(True, name="bad"), on_error=on_error)
        with pytest.raises((MergeConflict, ExceptionGroup)) as caught:
            await NodeFlow(start=branches).run({})
        found = everything(caught.value)
        assert names(found) == ["bad"]
        assert any(isinstance(error, MergeConflict) for error in found)


async def test_one_error_object_raised_by_many_items_makes_no_endless_chain():
    error = Oops("shared")

    class Same(BatchNode):
        def prep(self, shared):
            return range(5)

        async def exec(self, item):
            await asyncio.sleep(0)
            raise error

    with pytest.raises(Oops) as caught:
        await NodeFlow(start=Same(concurrency=5)).run()
    assert caught.value is error
    assert names(everything(error)) == ["shared"]


async def test_errors_are_kept_while_another_one_is_handled():
    class Bad(BatchNode):
        def prep(self, shared):
            return [1, 2, 3]

        async def exec(self, item):
            # All of them are under way when the first one fails.
            await asyncio.sleep(0.01)
            raise ValueError(item)

    flow = NodeFlow(start=Bad(concurrency=3))
    with pytest.raises(ValueError, match="1") as caught:
        try:
            raise KeyError("outer")
        except KeyError:
            await flow.run()
    assert {str(error) for error in everything(caught.value)} >= {"1", "2", "'outer'"}
    with pytest.raises(ValueError, match="1") as caught:
        await asyncio.to_thread(flow.run_sync)
    found = {type(error) for error in everything(caught.value)}
    assert found <= {ValueError, ExceptionGroup}


@pytest.mark.parametrize("others", [1, 8])
@pytest.mark.parametrize("around", ["nothing", "collect"])
async def test_the_error_that_failed_a_durable_run_comes_before_those_of_branches_that_it_cancelled(around, others):
    class Fails(Node):
        async def exec(self, prep_res):
            await asyncio.sleep(0)
            raise Oops("the cause")

    class FailsInCleanup(Node):
        async def exec(self, prep_res):
            try:
                await asyncio.Event().wait()
            finally:
                raise Oops("in its cleanup")

    branches = parallel(Fails, *(FailsInCleanup(name=f"other{n}") for n in range(others)))
    async with MemoryStorage() as storage:
        start = branches if around == "nothing" else parallel(branches, on_error="collect")
        flow = NodeFlow(start=start, name="f", storage=storage)
        with pytest.raises((Oops, ExceptionGroup)):
            await flow.run(flow_id="r")
        errors = (await flow.status("r")).errors
        assert [error.message for error in errors] == ["the cause", *["in its cleanup"] * min(others, 4)]
        async with worker([flow]):
            handle = await flow.submit()
            with pytest.raises(RunFailed, match="the cause"):
                await handle.result(timeout=20)
