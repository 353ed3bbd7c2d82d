"""The thread of an SQLite storage: it waits for locks of other processes and for the disk."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeAlias
from weakref import finalize

from stepwell._portal import settle

__all__ = ["StorageThread"]

#: The loop and the future of the caller, a callback for the loop, the function and its arguments.
_Job: TypeAlias = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[..., None], Callable[..., Any], Any]


class StorageThread:
    """Runs one job at a time. The job of a cancelled caller is still finished."""

    def __init__(self, name: str) -> None:
        #: Jobs that are queued or running. At 0, the loop may use the writer's connection.
        self.pending: int = 0
        self._pid = os.getpid()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        # A daemon: a storage that was not closed must not keep the interpreter running.
        self._thread = Thread(target=_work, args=(self._jobs,), name=name, daemon=True)
        self._thread.start()
        # End the thread of a storage that is garbage collected without being closed.
        finalize(self, self._jobs.put, None).atexit = False

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the one that started the thread: then the thread does not run here."""
        return os.getpid() != self._pid

    def call(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Call a function in the thread; return a future with its result or error."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self.pending += 1
        self._jobs.put((loop, future, self._done, function, args))
        return future

    def end(self) -> None:
        """End the thread after all queued jobs."""
        self._jobs.put(None)
        if not self.forked:
            self._thread.join()

    def _done(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self.pending -= 1
        settle(future, result, error)


def _work(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        loop, future, done, function, args = job
        result = error = None
        try:
            result = function(*args)
        except BaseException as raised:  # noqa: BLE001 it is raised where the future is awaited
            error = raised
        # suppress() would cost three more calls for each job.
        try:  # noqa: SIM105
            loop.call_soon_threadsafe(done, future, result, error)
        except RuntimeError:
            # The loop was closed while the job was running.
            pass
        # Drop all references before get() waits.
        del job, loop, future, done, function, args, result, error
