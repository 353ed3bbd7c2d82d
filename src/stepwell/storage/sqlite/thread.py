"""One thread for all that may wait: other processes' locks, the disk, a scan."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, TypeVar
from weakref import finalize

from stepwell._portal import settle

__all__ = ["StorageThread"]

T = TypeVar("T")


class _Job(NamedTuple):
    loop: asyncio.AbstractEventLoop
    #: Called in the loop with the result and the error.
    done: Callable[[Any, BaseException | None], None]
    work: Callable[[], Any]


class StorageThread:
    """Makes one job after the other. A caller that is cancelled leaves; its job is finished all the same."""

    def __init__(self, name: str) -> None:
        #: Jobs not yet known to be finished; while there are none, nothing moves in the thread.
        self.pending = 0
        self._pid = os.getpid()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        # A storage that nobody closes must not keep the interpreter from ending.
        self._thread = Thread(target=_work, args=(self._jobs,), name=name, daemon=True)
        self._thread.start()
        # Nor must one that nobody has any more keep a thread.
        finalize(self, self._jobs.put, None).atexit = False

    @property
    def forked(self) -> bool:
        """This process is a copy of the one that started the thread, and has none."""
        return os.getpid() != self._pid

    async def call(self, work: Callable[[], T]) -> T:
        """What the work returns or raises."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def done(result: Any, error: BaseException | None) -> None:
            self.pending -= 1
            settle(future, result, error)

        self._put(done, work)
        return await future

    def start(self, work: Callable[[], object]) -> None:
        """Work that nobody waits for, and that does not raise."""

        def done(result: Any, error: BaseException | None) -> None:
            self.pending -= 1

        self._put(done, work)

    def end(self) -> None:
        """End the thread after all that was given to it."""
        self._jobs.put(None)
        if not self.forked:
            self._thread.join()

    def _put(self, done: Callable[[Any, BaseException | None], None], work: Callable[[], Any]) -> None:
        self.pending += 1
        self._jobs.put(_Job(asyncio.get_running_loop(), done, work))


def _work(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        result, error = None, None
        try:
            result = job.work()
        except BaseException as raised:  # noqa: BLE001 it is raised where it was asked for
            error = raised
        # A loop that was closed with this job under way has nobody left to be told.
        with suppress(RuntimeError):
            job.loop.call_soon_threadsafe(job.done, result, error)
        # The next get() may wait for long, and must not keep what this job held.
        del job, result, error
