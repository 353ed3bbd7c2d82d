"""The executor of one batch: given, or made by a function and made again when it breaks."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import TypeAlias

from stepwell._backoff import backoff
from stepwell._secrets import quoted
from stepwell.errors import ExecutorError
from stepwell.nodes.walk.thread_pool import ThreadPool, shared_pool
from stepwell.nodes.walk.threads import ExecutorFailed, settled

__all__ = ["BatchExecutor", "MakeExecutor", "reason_of"]

logger: logging.Logger = logging.getLogger(__name__)

MakeExecutor: TypeAlias = Callable[[], Executor]

#: How often an item is sent again after its executor broke. An item that kills its worker must not do so for ever.
_RESENDS = 2
#: How often new pools are made while the fork server refuses connections after a pool broke, and the first and the
#: longest pause between two of them, in seconds.
_REFUSALS = 14
_PAUSES = (0.02, 1.0)


class BatchExecutor:
    """Holds the executor of a batch, and replaces it if it breaks and a function makes a new one."""

    def __init__(self, path: str, given: Executor | ThreadPool | MakeExecutor | None) -> None:
        self._path = path
        self._make: MakeExecutor | None = None
        self._current: Executor | ThreadPool | None = None
        if given is None or isinstance(given, Executor | ThreadPool):
            self._current = given
        else:
            self._make = given
        #: How often each item was lost with an executor that broke.
        self._lost: Counter[int] = Counter()
        #: How many executors found that the fork server refuses connections, since the last one that broke otherwise.
        self._refusals = 0

    def get(self) -> Executor | ThreadPool | None:
        """Return the executor, a new one if the last one broke; ``None`` means the shared threads."""
        if self._current is None and self._make is not None:
            try:
                self._current = self._make()
            except Exception as error:
                raise ExecutorFailed(error) from error
        return self._current

    async def replace(
        self, broken: Executor | ThreadPool | None, failure: ExecutorFailed, items: Iterable[int]
    ) -> None:
        """Let :meth:`get` make a new executor; raise the failure if there is no function, or an item was lost often.

        All chunks of a broken executor fail, and the first of them discards it.
        """
        is_broken = isinstance(failure.error, BrokenExecutor)
        # A given pool may have been shut down by its owner, and still run other jobs.
        if isinstance(failure.error, BrokenProcessPool) or (is_broken and self._make is not None):
            _kill_workers(broken)
        if self._make is None or not is_broken:
            raise failure
        refused = isinstance(failure.error.__cause__, ConnectionRefusedError)
        if broken is self._current:
            self._refusals = self._refusals + 1 if refused else 0
            logger.warning("%s: making a new executor after %s", self._path, type(failure.error).__name__)
            self._current = None
            assert isinstance(broken, Executor)
            broken.shutdown(wait=False)
        if refused:
            # An ending fork server refuses connections until its process is gone. No item is the reason.
            if self._refusals > _REFUSALS:
                raise failure
            await asyncio.sleep(backoff(self._refusals, *_PAUSES))
            if self._refusals > _REFUSALS:
                # Another item has given up meanwhile.
                raise failure
            return
        self._lost.update(items)
        if max(self._lost[index] for index in items) > _RESENDS:
            raise failure

    def advice(self, error: Exception) -> str:
        """Return the note for an error that ends the batch."""
        whose = f"the executor of batch {quoted(self._path)}"
        kept = "A durable run has stored the results so far, and can be resumed"
        if isinstance(error, ExecutorError):
            return f"no item was sent to {whose}"
        lost = sorted(index for index, times in self._lost.items() if times > _RESENDS)
        if lost:
            return f"{whose} broke {_RESENDS + 1} times while it ran item {lost[0]}. {kept}"
        return f"{whose} failed, not one of the items; give the node another executor. {kept}"

    async def close(self) -> None:
        """Shut the executor down if this batch has made it."""
        if self._make is not None and isinstance(self._current, Executor):
            # It waits for its workers, which must not block the event loop.
            ending = shared_pool().submit(partial(self._current.shutdown, cancel_futures=True))
            await settled(asyncio.wrap_future(ending))


def reason_of(error: Exception, executor: Executor) -> Exception:
    """Return why ``submit`` failed: the error that it raised, or that of an executor that broke meanwhile."""
    if isinstance(error, ConnectionRefusedError) and isinstance(executor, ProcessPoolExecutor):
        # The fork server ends if a pool breaks while a worker starts. The next pool starts another one.
        gone = BrokenExecutor("its fork server has ended")
        gone.__cause__ = error
        return gone
    if isinstance(error, OSError) and isinstance(executor, ProcessPoolExecutor):
        # Python 3.11 closes the pipes of a pool that breaks while submit() starts a worker with them.
        try:
            executor.submit(int)
        except BrokenExecutor as broken:
            return broken
        except (OSError, RuntimeError):
            # The first error says why.
            return error
    return error


def _kill_workers(broken: Executor | ThreadPool | None) -> None:
    """Kill the processes of a broken pool.

    Python 3.11 does not stop a worker that was starting when the pool broke, and waits for it when the pool is shut
    down or the program ends.
    """
    if not isinstance(broken, ProcessPoolExecutor):
        return
    if hasattr(broken, "kill_workers"):
        # Since Python 3.14. It also shuts the pool down, which is of no use any more.
        broken.kill_workers()
        return
    # A private attribute: without it, the error of the pool must still be raised.
    for worker in list((getattr(broken, "_processes", None) or {}).values()):
        worker.kill()
