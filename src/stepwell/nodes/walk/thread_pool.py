"""The threads that run a ``def exec``."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

__all__ = ["SIZE", "ThreadPool", "shared_pool"]

#: How many ``def exec`` run at once in the pool that all runs of a process share.
SIZE = 64
#: Seconds after which a thread without work ends.
IDLE = 10.0

_Call = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...]]


class ThreadPool:
    """Runs up to ``size`` calls at once in daemon threads, which start on demand and end when idle.

    Unlike a ``ThreadPoolExecutor``, it can abandon a call that has timed out and start another thread in its
    place. Its threads do not keep the interpreter from ending.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        #: Guards all attributes below.
        self._changed = threading.Condition()
        self._queue: deque[_Call] = deque()
        self._running: set[Future[Any]] = set()
        #: The number of threads without the abandoned ones, and how many of them have no call.
        self._threads = self._idle = 0
        self._closed = False

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Call a function as soon as a thread is free, and return the future of its result."""
        future: Future[Any] = Future()
        with self._changed:
            self._queue.append((future, function, args))
            try:
                self._dispatch()
            except RuntimeError:
                # The system starts no further thread: an existing one takes the call later.
                if self._threads == 0:
                    self._queue.pop()
                    raise
        return future

    def abandon(self, future: Future[Any]) -> None:
        """Stop counting a call. Its thread ends with the call; a call that is still queued never runs."""
        with self._changed:
            if future in self._running:
                self._running.discard(future)
                self._threads -= 1
                with suppress(RuntimeError):
                    self._dispatch()
            else:
                future.cancel()

    def close(self) -> None:
        """Let each thread end as soon as it has no work, without waiting for it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _dispatch(self) -> None:
        if self._idle >= len(self._queue):
            self._changed.notify()
        elif self._threads < self._size:
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            thread.start()
            self._threads += 1
            self._idle += 1

    def _work(self) -> None:
        while (call := self._next()) is not None:
            future, function, args = call
            result, error = None, None
            if future.set_running_or_notify_cancel():
                try:
                    result = function(*args)
                except BaseException as failure:  # noqa: BLE001 - the future raises it
                    error = failure
            with self._changed:
                abandoned = future not in self._running
                self._running.discard(future)
                if not abandoned:
                    # Before the result is set, because its waiter may submit the next call immediately.
                    self._idle += 1
            if error is not None:
                future.set_exception(error)
            elif not future.cancelled():
                future.set_result(result)
            if abandoned:
                return
            del call, future, function, args, result, error

    def _next(self) -> _Call | None:
        with self._changed:
            while not self._queue:
                if self._closed or (not self._changed.wait(IDLE) and not self._queue):
                    self._idle -= 1
                    self._threads -= 1
                    return None
            self._idle -= 1
            call = self._queue.popleft()
            self._running.add(call[0])
            return call


_shared: ThreadPool | None = None


def shared_pool() -> ThreadPool:
    """Return the pool for every ``def exec`` outside executors and concurrent batches."""
    global _shared
    if _shared is None:
        _shared = ThreadPool(SIZE, "stepwell-exec")
    return _shared


def _forget() -> None:
    global _shared
    _shared = None


if hasattr(os, "register_at_fork"):
    # A forked child has none of its parent's threads.
    os.register_at_fork(after_in_child=_forget)
