"""Calls of many threads on one storage, run on the library's background loop in batches.

``stepwell.sync`` wakes the loop for every call. With 50 threads, most of the time goes to these switches. Here threads
that arrive while a batch is running wait for the next one.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

from stepwell.engine import background_loop
from stepwell.errors import InsideLoop

__all__ = ["BlockingCalls"]

T = TypeVar("T")

#: Seconds after which the next batch begins, even if the last one has not ended.
LONGEST_WAIT = 0.02


class BlockingCalls:
    """The calls of all threads."""

    def __init__(self) -> None:
        self._waiting: deque[_WaitingThread] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Whether a batch is running, or the loop was woken to begin one.
        self._running = False
        self._beginning = threading.Lock()
        #: The last batch, and how many of its calls have not ended.
        self._batch = self._left = 0

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, and return its result or raise its error. Blocks the calling thread."""
        if asyncio._get_running_loop() is not None:
            call.close()
            raise InsideLoop
        loop = background_loop()
        if loop is not self._loop:
            self._begin(loop)
        waiting = _WaitingThread(call)
        self._waiting.append(waiting)
        if not self._running:
            self._running = True
            loop.call_soon_threadsafe(self._next)
        waiting.ended.acquire()
        if waiting.error is not None:
            raise waiting.error
        result: T = waiting.result
        return result

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._beginning:
            if loop is not self._loop:
                # In a forked child, these are the threads of its parent.
                self._waiting.clear()
                self._running = False
                self._loop = loop

    def _next(self) -> None:
        """Begin all waiting calls. Called in the loop."""
        loop = asyncio.get_running_loop()
        self._batch += 1
        self._left = 0
        while self._waiting:
            waiting = self._waiting.popleft()
            self._left += 1
            waiting.task = loop.create_task(self._run(waiting, self._batch))
        if self._left:
            loop.call_later(LONGEST_WAIT, self._end, self._batch)
        else:
            self._running = False
            # A thread may have come between the last two lines.
            if self._waiting:
                self._running = True
                loop.call_soon(self._next)

    def _end(self, batch: int) -> None:
        if batch == self._batch:
            self._next()

    async def _run(self, waiting: _WaitingThread, batch: int) -> None:
        try:
            waiting.result = await waiting.call
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
            waiting.error = error
        finally:
            waiting.ended.release()
            if batch == self._batch:
                self._left -= 1
                if not self._left:
                    self._next()


class _WaitingThread:
    __slots__ = ("call", "ended", "error", "result", "task")

    def __init__(self, call: Coroutine[Any, Any, Any]) -> None:
        self.call = call
        self.result: Any = None
        self.error: BaseException | None = None
        self.task: asyncio.Task[None] | None = None
        self.ended = threading.Lock()
        self.ended.acquire()
