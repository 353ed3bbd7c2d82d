"""Calls in threads that are awaited even if their caller is cancelled."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepwell._secrets import quoted
from stepwell.errors import NodeTimeout
from stepwell.nodes.walk.execution import enter
from stepwell.nodes.walk.thread_pool import ThreadPool, shared_pool

if TYPE_CHECKING:
    from stepwell.nodes.walk.execution import Cursor

__all__ = ["ExecutorFailed", "in_thread", "result_of", "settled"]


class ExecutorFailed(BaseException):
    """The executor broke or was shut down. It is not an error of an item, so retries and ``on_error`` ignore it."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


@dataclass(slots=True)
class Job:
    """A call that stores its outcome, since an asyncio future cannot hold a ``StopIteration``."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    abandoned: bool = False
    began: bool = False
    result: Any = None
    error: BaseException | None = None

    def __call__(self) -> None:
        if self.abandoned:
            return
        self.began = True
        try:
            self.result = self.function(*self.args)
        except BaseException as error:  # noqa: BLE001 - raised where the job is awaited
            self.error = error


async def in_thread(
    place: str,
    cursor: Cursor,
    function: Callable[..., Any],
    *args: Any,
    timeout: float | None = None,
    pool: Executor | ThreadPool | None = None,
    late: Callable[[Any], None] | None = None,
) -> Any:
    """Call a function in a thread, with the caller's context variables and a copy of its position.

    If the caller is cancelled, it waits until the thread is done, and passes the result to ``late``; if its worker
    stops, it returns the result. After ``timeout`` seconds it raises ``NodeTimeout`` and abandons the thread, so that
    the pool can start another one. It raises ``ExecutorFailed`` if the pool is broken or shut down.
    """
    job = Job(function, args)
    pool = pool or shared_pool()
    context = contextvars.copy_context()
    if cursor.branch is not None and cursor.effects is None:
        cursor.effects = [0]
    # A copy of the position, because the run continues while an abandoned thread still reads it.
    context.run(enter, cursor.copy())
    try:
        submitted: Future[None] = pool.submit(context.run, job)
    except Exception as error:
        if isinstance(pool, ThreadPool):
            raise
        raise ExecutorFailed(error) from error
    future = asyncio.wrap_future(submitted)
    try:
        # Unlike wait_for(), it does not cancel the future.
        await asyncio.wait((future,), timeout=timeout)
    except asyncio.CancelledError:
        job.abandoned = True
        await settled(future)
        if job.error is not None:
            # An async def that fails while it is cancelled raises its error as well.
            raise job.error from None
        if job.began and _is_drained(cursor):
            # It was awaited anyway, so its result is committed before the run is handed over.
            return job.result
        if late is not None and job.result is not None:
            late(job.result)
        raise
    if not future.done():
        job.abandoned = True
        if isinstance(pool, ThreadPool):
            pool.abandon(submitted)
        # The thread may outlive this loop; a cancelled future ignores its result.
        future.cancel()
        assert timeout is not None
        raise NodeTimeout(place, timeout)
    try:
        result_of(future, place)
    except Exception as error:
        # The job catches the errors of its function, so this is one of the executor.
        raise ExecutorFailed(error) from error
    if job.error is not None:
        raise job.error
    return job.result


def _is_drained(cursor: Cursor) -> bool:
    """Return whether the caller was cancelled because its worker stops; undo the cancellation."""
    task = asyncio.current_task()
    if not cursor.run.drain.asked or cursor.branch is None or cursor.branch.journal.mailbox.cancel is not None:
        return False
    while task is not None and task.cancelling():
        task.uncancel()
    return True


def result_of(future: asyncio.Future[Any], place: str) -> Any:
    """Return the result of an executor; raise its error, or ``BrokenExecutor`` if it cancelled the future."""
    if future.cancelled():
        raise BrokenExecutor(f"the executor of {quoted(place)} was shut down and cancelled its work")
    return future.result()


async def settled(future: asyncio.Future[Any]) -> None:
    """Wait until a future is done, even if the waiter is cancelled meanwhile."""
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError:
            # The caller raises the cancellation afterwards.
            continue
