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
#: A thread without work ends after so many seconds.
IDLE = 10.0

_Call = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...]]


class ThreadPool:
    """Runs up to ``size`` calls at once in daemon threads, which start on demand and end when idle.

    A ``ThreadPoolExecutor`` that can do without a thread: a call that timed out cannot be stopped, so
    :meth:`abandon` gives its place to others. No thread keeps the interpreter from ending.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        #: Its lock guards all attributes below.
        self._changed = threading.Condition()
        self._queue: deque[_Call] = deque()
        self._running: set[Future[Any]] = set()
        #: Threads, without the abandoned ones, and how many of them wait for a call or are about to.
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
                # No further thread can be started: one that exists takes the call later.
                if self._threads == 0:
                    self._queue.pop()
                    raise
        return future

    def abandon(self, future: Future[Any]) -> None:
        """Give the place of a call to others. Its thread ends with the call; a call that is queued never runs."""
        with self._changed:
            if future in self._running:
                self._running.discard(future)
                self._threads -= 1
                with suppress(RuntimeError):
                    self._dispatch()
            else:
                future.cancel()

    def close(self) -> None:
        """End each thread as soon as it has no work, without waiting for it."""
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
                except BaseException as failure:  # noqa: BLE001 - the future carries it
                    error = failure
            with self._changed:
                abandoned = future not in self._running
                self._running.discard(future)
                if not abandoned:
                    # Before the result is set: its waiter may submit the next call to this thread.
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
    """The pool for every ``def exec`` that has no executor and no batch with a window of its own."""
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
