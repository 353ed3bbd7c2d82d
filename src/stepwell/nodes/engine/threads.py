"""Calls in threads: awaited even if cancelled, and their errors raised."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import TYPE_CHECKING, Any

from stepwell.errors import NodeTimeout
from stepwell.nodes.engine.position import enter
from stepwell.nodes.engine.thread_pool import ThreadPool, shared_pool

if TYPE_CHECKING:
    from stepwell.nodes.engine.position import Cursor

__all__ = ["ExecutorFailed", "in_thread", "result_of", "settled", "wait_for"]


class ExecutorFailed(BaseException):
    """The executor broke or was shut down. No error of an item: it passes through retries and ``on_error``."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class Job:
    """A call that keeps its outcome: an asyncio future cannot carry every exception (``StopIteration``)."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._function = function
        self._args = args
        self.given_up = False
        self.result: Any = None
        self.error: BaseException | None = None

    def __call__(self) -> None:
        if self.given_up:
            return
        try:
            self.result = self._function(*self._args)
        except BaseException as error:  # noqa: BLE001 - it is raised where the job is awaited
            self.error = error

    def outcome(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


async def in_thread(
    place: str,
    cursor: Cursor,
    function: Callable[..., Any],
    *args: Any,
    timeout: float | None = None,
    pool: Executor | ThreadPool | None = None,
    salvage: Callable[[Any], None] | None = None,
) -> Any:
    """Call a function in a thread that sees the caller's context and its own copy of the position.

    Cancelled, it waits until the thread is done; ``salvage``
    then gets what the function returned. After ``timeout`` seconds it raises and abandons the thread, whose place
    in the pool is free then. Raises ``ExecutorFailed`` if the given pool is broken or shut down.
    """
    job = Job(function, args)
    pool = pool or shared_pool()
    try:
        submitted = _submit(job, cursor, pool)
    except Exception as error:
        if isinstance(pool, ThreadPool):
            raise
        raise ExecutorFailed(error) from error
    future = asyncio.wrap_future(submitted)
    try:
        done = await wait_for(future, timeout)
    except asyncio.CancelledError:
        job.given_up = True
        await settled(future)
        if job.error is not None:
            # As from an async def that fails while it is cancelled: the error is what is left to tell.
            raise job.error from None
        if salvage is not None and job.result is not None:
            salvage(job.result)
        raise
    if not done:
        job.given_up = True
        if isinstance(pool, ThreadPool):
            pool.abandon(submitted)
        # The thread may outlive this loop; it does not report to a future that is cancelled.
        future.cancel()
        assert timeout is not None
        raise NodeTimeout(place, timeout)
    try:
        result_of(future, place)
    except Exception as error:
        # The job returns normally, whatever its function raises.
        raise ExecutorFailed(error) from error
    return job.outcome()


def _submit(job: Callable[[], None], cursor: Cursor, pool: Executor | ThreadPool) -> Future[None]:
    """Start a job in a thread of a pool."""
    context = contextvars.copy_context()
    # A copy: a thread that is given up must not see where the run goes next.
    context.run(enter, cursor.copy())
    return pool.submit(context.run, job)


async def wait_for(future: asyncio.Future[Any], timeout: float | None = None) -> bool:
    """Wait without cancelling the future when the waiter is cancelled; whether it is done."""
    done, _ = await asyncio.wait((future,), timeout=timeout)
    return bool(done)


def result_of(future: asyncio.Future[Any], place: str) -> Any:
    """Return what an executor returned, or raise its error; a future that the executor cancelled is one too."""
    if future.cancelled():
        raise BrokenExecutor(f"the executor of {place!r} was shut down and has cancelled its work")
    return future.result()


async def settled(future: asyncio.Future[Any]) -> None:
    """Wait for the end of work that cannot be called back, however often the waiter is cancelled."""
    while not future.done():
        try:
            await wait_for(future)
        except asyncio.CancelledError:
            # The first cancellation is already on its way up.
            continue
