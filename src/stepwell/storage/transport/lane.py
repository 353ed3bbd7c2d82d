"""Batching: operations that arrive while a batch is being sent form the next batch.

There is no timer. A single operation is sent immediately; under load batches grow, and their operations share one round
trip and one commit.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from itertools import count
from typing import Any, TypeAlias

from stepwell.errors import (
    OutcomeUnknown,
    StorageClosed,
    StorageError,
    StorageFull,
    StorageUnavailable,
)
from stepwell.storage.operations import Apply, Claim, Claimed, Operation, Release, Result
from stepwell.storage.transport.batch import REPEATABLE, Batch, elapsed, send
from stepwell.storage.transport.group_commit import GroupCommit

__all__ = ["Entry", "Lane", "retrieve"]

#: The limits of one batch.
MAX_OPERATIONS = 100
MAX_BYTES = 1024 * 1024
#: The most releases that are kept for the end of an outage.
MAX_UNRELEASED = 10_000

#: An operation and the future of its waiter.
Entry: TypeAlias = tuple[Operation, "asyncio.Future[Result]"]


class Lane(GroupCommit[Operation, Result]):
    """A FIFO queue before ``run`` that sends one batch at a time.

    If the connection breaks, the lane retries the batch under the same number for ``patience`` seconds. It never
    retries after the journal may have expired, even if the process was stopped or suspended. Every waiter gets a
    result or an error, whatever ``run`` raises.

    ``numbers``: the numbers of its batches, if several lanes share an id.
    """

    def __init__(
        self,
        run: Callable[[Batch], Awaitable[list[Result]]],
        *,
        ids: Callable[[], str],
        patience: float = 10.0,
        pauses: tuple[float, float] = (0.02, 0.5),
        clock: Callable[[], float] = elapsed,
        numbers: Iterator[int] | None = None,
    ) -> None:
        super().__init__(run, name="stepwell-lane")
        self._run = run
        self._patience = min(patience, REPEATABLE)
        self._clock = clock
        self._pauses = pauses
        self._id = ids()
        self._numbers = count(1) if numbers is None else numbers
        #: The most operations of the next batch. It is smaller while a batch that failed as a whole is bisected.
        self._most = MAX_OPERATIONS
        #: Releases that failed in an outage or on a full disk. They are sent again after it: otherwise their addresses
        #: would stay claimed until the leases end.
        self._unreleased: deque[Release] = deque(maxlen=MAX_UNRELEASED)
        self._closed = False

    @property
    def idle(self) -> bool:
        """Whether no operation is queued or being sent, or has to be sent again."""
        return self._runner is None and not self._unreleased

    async def submit(self, operation: Operation) -> Any:
        """Queue an operation and wait for its result; its error is raised."""
        if self._closed:
            raise StorageClosed
        future = self.put(operation)
        try:
            result = await future
        except asyncio.CancelledError:
            # The result may have arrived together with the cancellation.
            if future.done() and not future.cancelled() and future.exception() is None:
                self._discard(operation, future.result())
            raise
        if isinstance(result, Exception):
            raise result
        return result

    async def close(self) -> None:
        """Send all queued operations, and refuse new ones."""
        self._closed = True
        await self.flush()

    def _take(self) -> list[Entry]:
        entries: list[Entry] = []
        queue = self._queue
        size = 0
        while queue and len(entries) < self._most:
            entry = queue.popleft()
            operation, future = entry
            # Drop the operations of cancelled waiters, except releases.
            if future.cancelled() and type(operation) is not Release:
                continue
            entries.append(entry)
            if type(operation) is Apply:
                change = operation.change
                size += sum(map(len, change.set.values()))
                if change.parts:
                    size += sum([len(part or "") for part in change.parts.values()])
                if size >= MAX_BYTES:
                    break
        return entries

    def _write(self, group: list[Entry]) -> Coroutine[Any, Any, None]:
        batch = Batch.of([operation for operation, _ in group], self._id, next(self._numbers))
        return self._send(group, batch, self._clock() + self._patience)

    async def _send(self, entries: list[Entry], batch: Batch, deadline: float, *, sent: bool = False) -> None:
        """Send a batch until ``deadline``. ``sent``: the server may have received it before."""
        try:
            results = await send(batch, self._run, deadline, sent=sent, clock=self._clock, pauses=self._pauses)
        except Exception as error:  # noqa: BLE001 it is passed to the waiters
            self._fail(entries, error)
            return
        self._most = min(self._most * 2, MAX_OPERATIONS)
        while self._unreleased:
            self._put_aside(self._unreleased.popleft())
        self._deliver(entries, results, batch, deadline)
        if len(entries) > 1 and not self._queue:
            # The tasks of a larger batch usually have a next operation. To wait for it costs less than a new task.
            await asyncio.sleep(0)

    def _deliver(self, entries: list[Entry], results: list[Result], batch: Batch, deadline: float) -> None:
        """Pass results to their waiters."""
        for (operation, future), result in zip(entries, results, strict=True):
            if future.done():
                self._discard(operation, result)
            else:
                future.set_result(result)

    def _fail(self, entries: list[Entry], error: Exception) -> None:
        """Pass an error to the waiters of a batch."""
        unavailable = isinstance(error, StorageUnavailable)
        if len(entries) > 1 and not unavailable and not isinstance(error, StorageFull | StorageClosed):
            # One operation made the whole batch fail, and it was rolled back: find it by bisection.
            self._queue.extendleft(reversed(entries))
            self._most = len(entries) // 2
            return
        for operation, future in entries:
            outcome = error if len(entries) == 1 else _copied(error)
            if type(operation) is Release and isinstance(error, StorageUnavailable | StorageFull):
                self._unreleased.append(operation)
            if not isinstance(error, StorageUnavailable) or error.sent:
                # A claim may have been applied, and nothing else would release it.
                self._release_claim(operation)
                if unavailable and type(operation) is Apply:
                    outcome = OutcomeUnknown(operation.address.text, str(error))
            if outcome is not error:
                outcome.__cause__ = error
            if not future.done():
                future.set_exception(outcome)

    def _discard(self, operation: Operation, result: Result) -> None:
        """Release a claim whose waiter was cancelled."""
        if type(result) is Claimed:
            self._release_claim(operation)

    def _release_claim(self, operation: Operation) -> None:
        if isinstance(operation, Claim) and not operation.renew:
            self._put_aside(Release(operation.address, operation.token))

    def _put_aside(self, release: Release) -> None:
        """Queue a release for which nobody waits."""
        self.put(release).add_done_callback(retrieve)


def retrieve(future: asyncio.Future[Any]) -> None:
    """Mark the exception as retrieved so that asyncio does not log it."""
    if not future.cancelled():
        future.exception()


def _copied(error: Exception) -> Exception:
    """Return a copy of an error for one of several waiters, or a ``StorageError`` if it cannot be copied."""
    try:
        copied = copy.copy(error)
    except Exception:  # noqa: BLE001 copying an arbitrary error may fail in any way
        copied = None
    if type(copied) is type(error):
        return copied
    wrapped = StorageError(f"the storage failed with {type(error).__name__}")
    wrapped.__cause__ = error
    return wrapped
