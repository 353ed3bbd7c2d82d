"""A background event loop in a thread, for callers without a loop."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import queue
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from stepwell._secrets import quoted
from stepwell.errors import InsideLoop, UsageError

__all__ = ["background_loop", "call_function", "carried", "settle", "sync", "sync_on"]

T = TypeVar("T")

#: The most ``def`` handlers that run at once.
THREADS = 64
#: Seconds between two checks for a pending signal, such as Ctrl-C. Python calls a signal's handler when the main thread
#: runs Python code again, and a signal that arrives just before a wait for a lock does not interrupt the wait.
SIGNAL_POLL = 0.5
#: Variables whose values a function sees that runs in the thread that waits in ``sync``. The other variables of that
#: thread stay as they are there, because web frameworks have their request in one.
carried: list[ContextVar[Any]] = []
_pool: list[_HandlerThreads] = []
_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def sync(awaitable: Awaitable[T]) -> T:
    """Run an awaitable on the library's background loop, and return its result.

    For Flask, Django and scripts. Storages opened through it belong to that loop and stay open between calls. Inside
    a running event loop it raises ``InsideLoop``; use ``await`` there.

    Raises ``UsageError`` if it gets no awaitable.

    Example::

        storage = open_storage("sqlite:///bot.db")
        state = sync(storage.get_state("my_bot", (42, 42)))
    """
    if not inspect.isawaitable(awaitable):
        raise UsageError(
            f"sync() takes an awaitable, such as sync(storage.get_state(bot, key)), got {quoted(awaitable)}"
        )
    return sync_on(None, awaitable, "await the coroutine")


def sync_on(loop: asyncio.AbstractEventLoop | None, awaitable: Awaitable[T], instead: str) -> T:
    """Run an awaitable on a loop of another thread if it is running, else on the library's background loop.

    ``instead``: what to do where this would block a loop, for the message of ``InsideLoop``.

    Example::

        from stepwell.engine import sync_on

        data = sync_on(storage.loop, storage.get_data("my_bot", 42), "await storage.get_data()")
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        if asyncio.iscoroutine(awaitable):
            awaitable.close()
        raise InsideLoop(instead)
    if loop is None or not loop.is_running():
        loop = background_loop()
    ended = threading.Event()
    caller = _Caller()
    future = asyncio.run_coroutine_threadsafe(_awaited(awaitable, ended, caller), loop)
    future.add_done_callback(caller.done)
    try:
        caller.work()
        return future.result()
    except BaseException:
        # After Ctrl-C in the caller's thread, cancel the work and wait for its cleanup.
        if future.cancel():
            while not ended.wait(SIGNAL_POLL):
                pass
        raise
    finally:
        caller.gone = True


async def _awaited(awaitable: Awaitable[T], ended: threading.Event, caller: _Caller) -> T:
    _callers.set(caller)
    try:
        return await awaitable
    finally:
        ended.set()


async def call_function(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of a user's program, ``def`` or ``async def``, without blocking the loop.

    A ``def`` function runs in the thread that waits in ``sync`` for this task, where it may use thread-bound objects
    such as a database connection or the request of a web framework, else in a thread of the library's pool.

    Example::

        from stepwell.engine import call_function

        def handler(text):
            return text.upper()

        assert await call_function(handler, "hello") == "HELLO"
    """
    if inspect.iscoroutinefunction(function):
        return await function(*args)
    caller = _callers.get()
    if caller is None or caller.gone:
        result = await _in_pool(function, *args)
    else:
        result = await caller.call(function, *args)
    return await result if inspect.isawaitable(result) else result


async def _in_pool(function: Callable[..., Any], *args: Any) -> Any:
    if not _pool:
        _pool.append(_HandlerThreads())
    context = copy_context()
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def work() -> None:
        if future.cancelled():
            return
        result: Any = None
        failure: BaseException | None = None
        try:
            result = context.run(function, *args)
        except StopIteration as error:
            # A future cannot carry it.
            failure = RuntimeError("the function raised StopIteration")
            failure.__cause__ = error
        except BaseException as error:  # noqa: BLE001 - it is raised where the call is awaited
            failure = error
        # The loop may be closed by now.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, future, result, failure)

    _pool[0].run(work)
    return await future


class _HandlerThreads:
    """Up to ``THREADS`` threads. They are daemons, so that a function that never ends does not block the exit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._started = 0
        #: Started threads without a job.
        self._idle = 0

    def run(self, job: Callable[[], None]) -> None:
        """Run a job in a thread, or queue it while all threads are busy."""
        with self._lock:
            if self._idle:
                self._idle -= 1
            elif self._started < THREADS:
                self._started += 1
                number = self._started
                threading.Thread(target=self._work, name=f"stepwell-handler-{number}", daemon=True).start()
        self._jobs.put(job)

    def _work(self) -> None:
        while True:
            self._jobs.get()()
            with self._lock:
                self._idle += 1


class _Caller:
    """A thread that waits in ``sync``, and runs jobs meanwhile."""

    def __init__(self) -> None:
        #: ``None`` marks the end.
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        #: Whether the thread has stopped waiting.
        self.gone = False

    def work(self) -> None:
        """Run jobs until the awaitable has ended. Called in the waiting thread."""
        while (job := self._next()) is not None:
            job()

    def _next(self) -> Callable[[], None] | None:
        while True:
            with contextlib.suppress(queue.Empty):
                return self._jobs.get(timeout=SIGNAL_POLL)

    def done(self, future: object) -> None:
        self._jobs.put(None)

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function in the waiting thread and return its result. Called in the loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        values = [(variable, variable.get()) for variable in carried]

        def job() -> None:
            tokens = [(variable, variable.set(value)) for variable, value in values]
            try:
                result = function(*args)
            except Exception as error:  # noqa: BLE001 - it is raised where the call is awaited
                loop.call_soon_threadsafe(settle, future, None, error)
            except BaseException:
                # Ctrl-C is for the thread and must not end the loop.
                loop.call_soon_threadsafe(future.cancel)
                raise
            else:
                loop.call_soon_threadsafe(settle, future, result, None)
            finally:
                for variable, token in tokens:
                    variable.reset(token)

        self._jobs.put(job)
        return await future


def settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Set the result or the error of a future, unless it is done."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


_callers: ContextVar[_Caller | None] = ContextVar("stepwell_caller", default=None)


def background_loop() -> asyncio.AbstractEventLoop:
    """Return the running background loop. The first call in a process starts it.

    Example::

        from stepwell.engine import background_loop

        asyncio.run_coroutine_threadsafe(storage.open(), background_loop()).result()
    """
    global _loop
    with _lock:
        if _loop is None or not _loop.is_running():
            loop = asyncio.new_event_loop()
            running = threading.Event()
            loop.call_soon(running.set)
            threading.Thread(target=loop.run_forever, name="stepwell-loop", daemon=True).start()
            running.wait()
            _loop = loop
        return _loop


def _forget() -> None:
    global _lock, _loop
    _lock, _loop = threading.Lock(), None
    _pool.clear()


if hasattr(os, "register_at_fork"):
    # A forked child has the loop but not its thread.
    os.register_at_fork(after_in_child=_forget)
