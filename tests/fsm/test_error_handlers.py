"""Handlers that raise: rollback, attempts, on_error; ``def`` handlers in threads."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import nullcontext
from typing import Any

import pytest

from stepwell import MemoryStorage
from stepwell.errors import InvalidOption, LeaseLost, StorageUnavailable
from stepwell.fsm import FSM, Context, Flow, HandlerFailed, Router, command, state, text
from tests.backends import Backend
from tests.constants import Constants
from tests.until import until


class Order(Flow, name="order"):
    item = state(to=["paid", "failed"])
    paid = state(to=[])
    failed = state(to=[])
    default_state = item


def update(number: int, words: str, user: int = 42) -> dict[str, Any]:
    person = {"id": user, "first_name": "A", "is_bot": False}
    message = {"message_id": number, "date": 0, "chat": {**person, "type": "private"}, "from": person, "text": words}
    return {"update_id": number, "message": message}


def make_router(storage: Any, **options: Any) -> Router:
    return Router(FSM("my_bot", storage=storage, flows=[Order], **options))


async def test_an_error_handler_runs_after_the_rollback_and_its_changes_are_committed(backend: Backend) -> None:
    router = make_router(backend.storage())
    seen: list[Any] = []

    @router.on(command("order"))
    async def order(ctx: Context) -> None:
        ctx.start_flow(Order)
        ctx.update_data(item="tea")

    @router.on(text())
    async def pay(ctx: Context) -> None:
        seen.append("handler")
        ctx.update_data(item="coffee", price=3)
        ctx.transition("paid")
        ctx.answer("Paid!")
        raise ValueError("no money")

    @router.on_error
    async def failed(ctx: Context, error: Exception) -> None:
        seen.append((ctx.state, dict(ctx.data), str(error)))
        ctx.update_data(problem=str(error))
        ctx.set_state("failed")
        ctx.answer("Something went wrong.")

    assert router.fsm is not None
    async with router.fsm:
        await router.handle(update(1, "/order"))
        calls = await router.handle(update(2, "pay"))
        assert [call["text"] for call in calls] == ["Something went wrong."]
        assert seen == ["handler", ("item", {"item": "tea"}, "no money")]
        record = await router.fsm.storage.get_state("my_bot", (42, 42))
        assert record is not None
        assert (record.state, record.data) == ("failed", {"item": "tea", "problem": "no money"})
        # The update counts as handled, and its answer is given again.
        assert await router.handle(update(2, "pay")) == calls
        assert len(seen) == 2


async def test_an_error_handler_that_changes_nothing_still_marks_the_update_as_handled() -> None:
    router = make_router(MemoryStorage())
    runs = []

    @router.on(text())
    async def fail(ctx: Context) -> None:
        runs.append(1)
        raise ValueError

    @router.on_error
    def ignore(ctx: Context, error: Exception) -> None:
        pass

    for _ in range(2):
        assert await router.handle(update(1, "x")) == []
    assert len(runs) == 1


async def test_the_nearest_error_handler_is_called() -> None:
    outer, inner = make_router(MemoryStorage()), Router()
    called = []

    @inner.on(command("inner"))
    @outer.on(command("outer"))
    async def fail(ctx: Context) -> None:
        raise ValueError

    @outer.on_error
    async def outside(ctx: Context, error: Exception) -> None:
        called.append("outer")

    @inner.on_error
    async def inside(ctx: Context, error: Exception) -> None:
        called.append("inner")

    outer.include(inner)
    await outer.handle(update(1, "/inner"))
    await outer.handle(update(2, "/outer"))
    assert called == ["inner", "outer"]


async def test_errors_of_hooks_and_filters_reach_the_error_handler() -> None:
    class Hooked(Flow, name="hooked"):
        one = state(to=[])
        default_state = one

        @staticmethod
        def on_enter(ctx: Context, name: str) -> None:
            raise ValueError("hook")

    router = Router(FSM("my_bot", storage="memory://", flows=[Hooked]))
    errors = []

    def odd(ctx: Context) -> bool:
        if ctx.text == "filter":
            raise ValueError("filter")
        return False

    @router.on(odd)
    async def never(ctx: Context) -> None:
        raise AssertionError

    @router.on(text())
    async def start(ctx: Context) -> None:
        ctx.start_flow(Hooked)

    @router.on_error
    async def failed(ctx: Context, error: Exception) -> None:
        assert ctx.flow is None
        errors.append(str(error))

    await router.handle(update(1, "hook"))
    await router.handle(update(2, "filter"))
    assert errors == ["hook", "filter"]


async def test_errors_of_the_storage_and_of_the_error_handler_are_raised() -> None:
    router = make_router(MemoryStorage())

    @router.on(command("storage"))
    async def storage(ctx: Context) -> None:
        raise StorageUnavailable("away", sent=False)

    @router.on(command("lease"))
    async def lease(ctx: Context) -> None:
        raise LeaseLost("here")

    @router.on(text())
    async def fail(ctx: Context) -> None:
        raise ValueError("handler")

    @router.on_error
    async def failed(ctx: Context, error: Exception) -> None:
        raise KeyError("error handler")

    for words, expected in (("/storage", StorageUnavailable), ("/lease", LeaseLost), ("x", KeyError)):
        with pytest.raises(expected):
            await router.handle(update(1, words))


async def test_without_an_error_handler_the_error_is_raised_and_nothing_is_remembered() -> None:
    router = make_router(MemoryStorage())
    runs = []

    @router.on(text())
    async def fail(ctx: Context) -> None:
        runs.append(1)
        ctx.start_flow(Order)
        raise ValueError("handler")

    for _ in range(2):
        with pytest.raises(ValueError, match="handler"):
            await router.handle(update(1, "x"))
    assert len(runs) == 2


async def test_a_handler_is_tried_again(constants: Constants) -> None:
    constants(router_pause=0.001)
    router = make_router(MemoryStorage())
    seen: list[Any] = []
    failures: list[Any] = []
    assert router.fsm is not None
    router.fsm.subscribe(lambda event: failures.append(event) if isinstance(event, HandlerFailed) else None)

    @router.on(text(), attempts=3)
    async def flaky(ctx: Context) -> None:
        seen.append((ctx.flow, len(ctx.calls)))
        ctx.start_flow(Order)
        ctx.answer("done")
        if len(seen) < 3:
            raise ConnectionError("try again")

    calls = await router.handle(update(1, "x"))
    assert [call["text"] for call in calls] == ["done"]
    assert seen == [(None, 0)] * 3
    assert [failure.again for failure in failures] == [True, True]
    assert (router.fsm.received, router.fsm.failed, router.fsm.retried) == (1, 0, 2)


@pytest.mark.parametrize("answered", [True, False])
async def test_an_update_is_counted_as_failed_once_and_its_attempts_apart(constants: Constants, answered: bool) -> None:
    constants(router_pause=0.001)
    router = make_router(MemoryStorage())
    fsm = router.fsm
    assert fsm is not None

    @router.on(text(), attempts=3)
    async def fail(ctx: Context) -> None:
        raise ConnectionError("again and again")

    @router.on_error
    async def failed(ctx: Context, error: Exception) -> None:
        if not answered:
            raise error
        ctx.answer("sorry")

    with nullcontext() if answered else pytest.raises(ConnectionError):
        await router.handle(update(1, "x"))
    assert (fsm.received, fsm.failed, fsm.retried) == (1, 1, 2)


async def test_what_was_saved_stays_after_a_rollback() -> None:
    router = make_router(MemoryStorage())

    @router.on(text())
    async def fail(ctx: Context) -> None:
        ctx.start_flow(Order)
        ctx.update_data(item="tea")
        await ctx.save()
        ctx.update_data(item="coffee")
        raise ValueError

    @router.on_error
    async def failed(ctx: Context, error: Exception) -> None:
        ctx.answer(f"{ctx.state} {ctx.data}")

    calls = await router.handle(update(1, "x"))
    assert calls[0]["text"] == "item {'item': 'tea'}"


async def test_an_error_without_a_key_can_be_answered() -> None:
    router = make_router(MemoryStorage())

    @router.on()
    async def fail(ctx: Context) -> None:
        raise ValueError

    @router.on_error
    async def failed(ctx: Context, error: Exception) -> None:
        ctx.answer("sorry")

    post = {"message_id": 1, "date": 0, "chat": {"id": -5, "type": "channel"}, "text": "x"}
    calls = await router.handle({"update_id": 1, "channel_post": post})
    assert [call["text"] for call in calls] == ["sorry"]


async def test_def_handlers_run_in_threads_and_block_nobody() -> None:
    router = make_router(MemoryStorage())
    release = threading.Event()
    threads = set()

    @router.on(command("slow"))
    def slow(ctx: Context) -> None:
        threads.add(threading.current_thread())
        release.wait(30)
        ctx.start_flow(Order)
        ctx.answer("slow")

    @router.on(text())
    async def quick(ctx: Context) -> None:
        ctx.answer("quick")

    waiting = asyncio.create_task(router.handle(update(1, "/slow")))
    await until(lambda: threads)
    assert (await router.handle(update(2, "x", user=43)))[0]["text"] == "quick"
    release.set()
    assert (await waiting)[0]["text"] == "slow"
    assert threading.main_thread() not in threads


def test_def_handlers_run_in_the_thread_of_handle_sync() -> None:
    router = make_router(MemoryStorage())
    threads = []

    @router.on(text())
    def handler(ctx: Context) -> None:
        threads.append(threading.current_thread())
        time.sleep(0.001)
        ctx.answer("done")

    assert router.handle_sync(update(1, "x"))[0]["text"] == "done"
    assert threads == [threading.current_thread()]


async def test_a_stop_iteration_in_a_thread_is_an_error() -> None:
    router = make_router(MemoryStorage())

    @router.on(text())
    def handler(ctx: Context) -> None:
        next(iter(()))

    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(router.handle(update(1, "x")), 30)


def test_a_handler_after_one_that_takes_everything_is_warned_of() -> None:
    router = make_router(MemoryStorage())

    @router.on()
    async def everything(ctx: Context) -> None: ...

    with pytest.warns(UserWarning, match="later never gets an update, because everything, .* takes all of them"):

        @router.on(text())
        async def later(ctx: Context) -> None: ...

    with pytest.warns(UserWarning, match="the included router never gets an update"):
        router.include(Router())


def test_wrong_arguments() -> None:
    router = make_router(MemoryStorage())
    with pytest.raises(InvalidOption, match="attempts must be a number of at least 1"):
        router.on(attempts=0)
    with pytest.raises(InvalidOption, match="decorates a function of the context and the error"):
        router.on_error(1)  # type: ignore[type-var]
    router.on_error(lambda ctx, error: None)
    with pytest.raises(InvalidOption, match="has an error handler already"):
        router.on_error(lambda ctx, error: None)
