"""Operations of many threads on one storage, sent to the background loop in batches.

``stepwell.sync`` wakes the loop for every call. With 50 threads, most of the time goes to these switches. Here threads
that arrive while a batch is being sent wait for the next one.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Any

from stepwell._portal import background_loop
from stepwell.errors import InsideLoop
from stepwell.storage import Operation, Storage

__all__ = ["OperationQueue"]

#: Seconds after which the next batch is sent, even if the last one has not ended.
LONGEST_WAIT = 0.02


class OperationQueue:
    """The operations of all threads on one storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._waiting: deque[_WaitingThread] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Whether a batch is being sent, or the loop was woken to send one.
        self._sending = False
        self._beginning = threading.Lock()
        #: The last batch, and how many of its operations have not ended.
        self._batch = self._left = 0

    def perform(self, operation: Operation) -> Any:
        """Apply one operation, and return its result or raise its error. Blocks the calling thread."""
        if asyncio._get_running_loop() is not None:
            raise InsideLoop
        loop = background_loop()
        if loop is not self._loop:
            self._begin(loop)
        waiting = _WaitingThread(operation)
        self._waiting.append(waiting)
        if not self._sending:
            self._sending = True
            loop.call_soon_threadsafe(self._send)
        waiting.ended.acquire()
        if waiting.error is not None:
            raise waiting.error
        return waiting.result

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._beginning:
            if loop is not self._loop:
                # In a forked child, these are the threads of its parent.
                self._waiting.clear()
                self._sending = False
                self._loop = loop

    def _send(self) -> None:
        """Send all waiting operations. Called in the loop."""
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
            self._sending = False
            # A thread may have come between the last two lines.
            if self._waiting:
                self._sending = True
                loop.call_soon(self._send)

    def _end(self, batch: int) -> None:
        if batch == self._batch:
            self._send()

    async def _run(self, waiting: _WaitingThread, batch: int) -> None:
        try:
            waiting.result = await self._storage.perform(waiting.operation)
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
            waiting.error = error
        finally:
            waiting.ended.release()
            if batch == self._batch:
                self._left -= 1
                if not self._left:
                    self._send()


class _WaitingThread:
    __slots__ = ("ended", "error", "operation", "result", "task")

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.result: Any = None
        self.error: BaseException | None = None
        self.task: asyncio.Task[None] | None = None
        self.ended = threading.Lock()
        self.ended.acquire()
