"""Batching: operations that arrive while a batch is being sent form the next batch.

There is no timer. A single operation is sent immediately; under load batches grow, and their operations share one round
trip and one commit.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, count
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from stepwell._backoff import backoff
from stepwell.errors import (
    InvalidOption,
    OutcomeUnknown,
    StorageClosed,
    StorageError,
    StorageFull,
    StorageUnavailable,
)
from stepwell.record import Address
from stepwell.storage.operations import Apply, Claim, Claimed, Operation, Release, Result

__all__ = ["JOURNAL_LIFE", "REPEATABLE", "Batch", "Entry", "Lane", "Remainder", "check_patience", "elapsed", "retrieve"]

#: The limits of one batch.
MAX_OPERATIONS = 100
MAX_BYTES = 1024 * 1024
#: The limit of the queue. Further callers wait until it has room.
MAX_QUEUE = 10_000
#: Seconds for which a backend keeps the number and the results of a lane's last batch.
JOURNAL_LIFE = 600
#: Seconds after the first attempt in which a batch may be sent again. Half of the journal's life: the other half allows
#: for delays in the network.
REPEATABLE = JOURNAL_LIFE / 2


#: A monotonic clock that, where available, also runs while the machine is suspended.
elapsed: Callable[[], float] = time.monotonic
if hasattr(time, "CLOCK_BOOTTIME"):
    elapsed = partial(time.clock_gettime, time.CLOCK_BOOTTIME)


def check_patience(patience: float, timeout: float) -> None:
    """Raise ``InvalidOption`` if a batch could be retried after its journal has expired.

    ``timeout``: the longest time of one attempt.
    """
    if not patience + timeout <= REPEATABLE:
        raise InvalidOption(
            f"patience={patience:g} is too long: with its timeouts a call may be retried for at most {REPEATABLE:g} s, "
            f"because a server remembers its last writes for {JOURNAL_LIFE} s"
        )


class Batch(tuple[Operation, ...]):
    """The operations of one round trip, with the id of the lane and a serial number.

    A backend with a network connection keeps the number and the results of a lane's last batch in the same commit.
    The same number again returns the kept results; a lower number is refused.
    """

    lane: str
    number: int

    @classmethod
    def of(cls, operations: Sequence[Operation], lane: str, number: int) -> Batch:
        """Return a batch of these operations."""
        batch = cls(operations)
        batch.lane, batch.number = lane, number
        return batch


#: An operation and the future of its waiter.
Entry: TypeAlias = tuple[Operation, "asyncio.Future[Result]"]


class Remainder(NamedTuple):
    """A part of a batch that has no results yet, while the rest of the batch has."""

    entries: list[Entry]
    batch: Batch
    #: When to stop retrying it.
    deadline: float
    #: Whether the server may have received it.
    sent: bool


#: Takes the operations of a batch that have no result yet, each with its error. Gets the lane, the batch and the time
#: until which to retry.
Park: TypeAlias = "Callable[[Lane, Batch, float, list[tuple[Entry, StorageUnavailable]]], None]"


class Lane:
    """A FIFO queue before ``run`` that sends one batch at a time.

    If the connection breaks, the lane retries the batch under the same number for ``patience`` seconds. It never
    retries after the journal may have expired, even if the process was stopped or suspended. Every waiter gets a
    result or an error, whatever ``run`` raises.

    With ``yields``, tasks that have just got a result may add their next operation to a batch that is queued. That is
    for a backend in this process: such a task and the batch would take turns for the GIL anyway, and one more batch
    would be one more wait for the disk. Without it, a queued batch is sent at once, so that the server works meanwhile.

    ``numbers``: the numbers of its batches, if several lanes share an id. ``park``: if a result is a
    ``StorageUnavailable``, its operation is passed on with it, and the lane continues with the next batch.
    """

    def __init__(
        self,
        run: Callable[[Batch], Awaitable[list[Result]]],
        *,
        ids: Callable[[], str],
        patience: float = 10.0,
        pauses: tuple[float, float] = (0.02, 0.5),
        clock: Callable[[], float] = elapsed,
        yields: bool = False,
        numbers: Iterator[int] | None = None,
        park: Park | None = None,
    ) -> None:
        self._run = run
        self._yields = yields
        self._park = park
        #: Returns whether a write may run in the task of its caller, where it may be cancelled. This is for a write to
        #: the address of the last one, if no other operation is under way. Such writes follow one another, so they
        #: would not share a batch, and a task of the lane takes two more turns of the event loop.
        self.inline: Callable[[Apply], bool] | None = None
        self._last: Address | None = None
        #: Called once before a new batch, when no operation is being sent or has to be sent again.
        self.before_next: Callable[[Lane], None] | None = None
        self._patience = min(patience, REPEATABLE)
        self._clock = clock
        self._pauses = pauses
        self._id = ids()
        self._numbers = count(1) if numbers is None else numbers
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Entry] = deque()
        #: Halves of a batch that failed as a whole; they are sent next.
        self._halves: deque[list[Entry]] = deque()
        #: Parts of batches of other lanes that must be sent again; they are sent first.
        self._remainders: deque[Remainder] = deque()
        self._blocked: deque[asyncio.Future[None]] = deque()
        #: Releases that failed in an outage or on a full disk. They are sent again after it: otherwise their addresses
        #: would stay claimed until the leases end.
        self._unreleased: deque[Release] = deque(maxlen=MAX_QUEUE)
        #: The task that sends batches, or a future that ends with a write in the task of its caller.
        self._runner: asyncio.Future[None] | None = None
        self._closed = False

    @property
    def idle(self) -> bool:
        """Whether no operation is queued or being sent, or has to be sent again."""
        return self._runner is None and not self._blocked and not self._unreleased

    def adopt(self, remainder: Remainder) -> None:
        """Send the remainder of another lane's batch again, before all queued operations."""
        self._remainders.append(remainder)
        self._start()

    def push(self, entries: Iterable[Entry]) -> None:
        """Queue operations of another lane."""
        self._queue.extend(entries)
        self._start()

    def pull(self, wanted: Callable[[Operation], bool]) -> list[Entry]:
        """Remove the operations that are ``wanted`` from the queue, in their order, and return them."""
        waiting = [*chain(*self._halves), *self._queue]
        pulled = [entry for entry in waiting if wanted(entry[0])]
        if pulled:
            self._halves = deque([[entry for entry in half if not wanted(entry[0])] for half in self._halves])
            self._queue = deque([entry for entry in self._queue if not wanted(entry[0])])
        return pulled

    async def submit(self, operation: Operation) -> Any:
        """Queue an operation and wait for its result; its error is raised."""
        if self._closed:
            raise StorageClosed
        if self.inline is not None and type(operation) is Apply:
            last, self._last = self._last, operation.address
            alone = self._runner is None and last == operation.address and not self._unreleased
            if alone and self.inline(operation):
                return await self._run_inline(operation)
        if self._blocked or len(self._queue) >= MAX_QUEUE:
            room: asyncio.Future[None] = self._loop.create_future()
            self._blocked.append(room)
            try:
                await room
            except asyncio.CancelledError:
                if type(operation) is Release:
                    # A release is sent even if its caller was cancelled.
                    self._put(operation).add_done_callback(retrieve)
                raise
        # The same as _put(), without a call.
        future: asyncio.Future[Result] = self._loop.create_future()
        self._queue.append((operation, future))
        if self._runner is None:
            self._start()
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

    async def _run_inline(self, operation: Apply) -> Result:
        """Run a write in the task of its caller. Operations that arrive meanwhile form the next batch."""
        self._runner = runner = self._loop.create_future()
        try:
            batch = Batch.of((operation,), self._id, next(self._numbers))
            (result,) = await self._retry(batch, self._clock() + self._patience, False)
        except StorageUnavailable as error:
            if error.sent:
                raise OutcomeUnknown(operation.address.text, str(error)) from error
            raise
        finally:
            self._runner = None
            runner.set_result(None)
            if (self._queue or self._blocked) and not self._loop.is_closed():
                self._start()
        if isinstance(result, Exception):
            raise result
        return result

    def _put(self, operation: Operation) -> asyncio.Future[Result]:
        future: asyncio.Future[Result] = self._loop.create_future()
        self._queue.append((operation, future))
        self._start()
        return future

    def _start(self) -> None:
        if self._runner is None:
            self._runner = self._loop.create_task(self._drain(), name="stepwell-lane")

    async def close(self) -> None:
        """Send all queued operations, and refuse new ones."""
        self._closed = True
        while self._runner is not None:
            await asyncio.wait([self._runner])

    async def _drain(self) -> None:
        entries: list[Entry] = []
        park = self._park
        try:
            while self._halves or self._queue or self._blocked or self._remainders:
                if self.before_next is not None and not (self._remainders or self._halves or self._blocked):
                    before_next, self.before_next = self.before_next, None
                    before_next(self)
                deadline, sent = self._clock() + self._patience, False
                if self._remainders:
                    entries, batch, deadline, sent = self._remainders.popleft()
                    if sent and self._clock() >= deadline:
                        self._fail(entries, StorageUnavailable("it was not answered in time"))
                        continue
                else:
                    entries = self._halves.popleft() if self._halves else self._take()
                    if not entries:
                        # Callers that waited for room now add their operations.
                        await asyncio.sleep(0)
                        continue
                    batch = Batch(map(_operation, entries))
                    batch.lane, batch.number = self._id, next(self._numbers)
                try:
                    results = await self._retry(batch, deadline, sent)
                except Exception as error:  # noqa: BLE001 it is passed to the waiters
                    self._fail(entries, error)
                else:
                    while self._unreleased:
                        self._put(self._unreleased.popleft()).add_done_callback(retrieve)
                    unsettled: list[tuple[Entry, StorageUnavailable]] = []
                    for entry, result in zip(entries, results, strict=True):
                        operation, future = entry
                        if park is not None and isinstance(result, StorageUnavailable):
                            unsettled.append((entry, result))
                        elif not future.done():
                            future.set_result(result)
                        else:
                            self._discard(operation, result)
                    if unsettled and park is not None:
                        entries = []
                        park(self, batch, deadline, unsettled)
                    # The tasks of a larger batch usually have a next operation. To wait for it here costs less than a
                    # new task of the lane.
                    if self._yields:
                        pauses = bool(self._queue)
                    else:
                        pauses = len(batch) > 1 and not self._queue and self.inline is None
                    if pauses:
                        await asyncio.sleep(0)
        finally:
            self._runner = None
            # These remain only if the event loop is shutting down.
            adopted = [remainder.entries for remainder in self._remainders]
            for _, future in [*entries, *chain(*adopted), *chain(*self._halves), *self._queue]:
                future.cancel()
            for room in self._blocked:
                room.cancel()
            self._remainders.clear()
            self._halves.clear()
            self._queue.clear()
            self._blocked.clear()

    def _take(self) -> list[Entry]:
        entries: list[Entry] = []
        queue = self._queue
        size = 0
        for _ in range(min(len(queue), MAX_OPERATIONS)):
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
        if self._blocked:
            for _ in range(min(len(self._blocked), MAX_QUEUE - len(queue))):
                room = self._blocked.popleft()
                if not room.done():
                    room.set_result(None)
        return entries

    async def _retry(self, batch: Batch, deadline: float, sent: bool) -> list[Result]:
        attempt = 0
        while True:
            try:
                results = await self._run(batch)
                if len(results) != len(batch):
                    raise StorageUnavailable(
                        f"the backend returned {len(results)} results for {len(batch)} operations", final=True
                    )
                if sent:
                    for result in results:
                        if isinstance(result, StorageUnavailable):
                            result.sent = True
                return results
            except StorageUnavailable as error:
                sent = error.sent = sent or error.sent
                # The first retry is immediate: a connection that the server has closed is the usual cause.
                pause = backoff(attempt, *self._pauses) if attempt else 0.0
                if error.final or self._clock() + pause >= deadline:
                    raise
                last = error
                attempt += 1
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                raise StorageUnavailable("the backend's call was cancelled", final=True) from None
            except (KeyboardInterrupt, SystemExit, GeneratorExit):
                raise
            except Exception as error:
                if not sent:
                    raise
                # An earlier attempt may have been applied, so the outcome is unknown.
                raise StorageUnavailable(f"it failed after its answer was lost ({type(error).__name__})") from error
            except BaseException as error:
                # A BaseException would end the lane, and bypass the callers' handlers.
                raise StorageUnavailable(f"the backend raised {type(error).__name__}", final=True) from error
            await asyncio.sleep(pause)
            if self._clock() >= deadline:
                # The process was stopped or the machine suspended, so the journal may have expired.
                raise last

    def _fail(self, entries: list[Entry], error: Exception) -> None:
        """Pass an error to the waiters of a batch."""
        unavailable = isinstance(error, StorageUnavailable)
        if len(entries) > 1 and not unavailable and not isinstance(error, StorageFull | StorageClosed):
            # One operation made the whole batch fail, and it was rolled back: find it by bisection.
            half = len(entries) // 2
            self._halves.extendleft([entries[half:], entries[:half]])
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
            self._put(Release(operation.address, operation.token)).add_done_callback(retrieve)


_operation = itemgetter(0)


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
