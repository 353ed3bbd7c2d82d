"""The timeout of the calls of one connection."""

from __future__ import annotations

import asyncio

import pytest

from stepwell.storage.transport.timeout import CallTimeout


async def call(timeout: CallTimeout, work: asyncio.Future[str]) -> str:
    """Wait for some work as a connection does."""
    timeout.start()
    try:
        return await work
    except asyncio.CancelledError:
        if timeout.end():
            return "too late"
        raise
    finally:
        timeout.end()


async def test_a_call_that_takes_too_long_is_cancelled() -> None:
    timeout = CallTimeout(0.01)
    assert await call(timeout, asyncio.Future()) == "too late"
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


async def test_a_call_that_ends_in_time_is_not_cancelled() -> None:
    timeout = CallTimeout(30)
    work: asyncio.Future[str] = asyncio.Future()
    asyncio.get_running_loop().call_soon(work.set_result, "done")
    assert await call(timeout, work) == "done"
    timeout.close()


async def test_one_timer_serves_many_calls_and_measures_each_of_them() -> None:
    timeout = CallTimeout(0.05)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    while loop.time() < begin + 0.15:
        done: asyncio.Future[str] = asyncio.Future()
        loop.call_later(0.005, done.set_result, "done")
        assert await call(timeout, done) == "done"
    begin = loop.time()
    assert await call(timeout, asyncio.Future()) == "too late"
    assert loop.time() - begin >= 0.05


async def test_the_cancellation_of_the_caller_is_not_a_timeout() -> None:
    timeout = CallTimeout(30)
    task = asyncio.create_task(call(timeout, asyncio.Future()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    timeout.close()


async def test_a_call_after_the_end_of_the_last_one_is_not_cancelled_by_its_timer() -> None:
    timeout = CallTimeout(0.01)
    done: asyncio.Future[str] = asyncio.Future()
    done.set_result("done")
    assert await call(timeout, done) == "done"
    await asyncio.sleep(0.03)
