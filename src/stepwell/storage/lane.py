"""What concurrent tasks ask for while a batch is under way goes out as the next batch.

No timer: alone, an operation is sent at once. Under load batches grow by themselves, and a round trip
and a commit are shared by all that wait for them.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from stepwell.errors import (
    InvalidOption,
    OutcomeUnknown,
    StorageClosed,
    StorageError,
    StorageFull,
    StorageUnavailable,
)
from stepwell.storage.operations import Apply, Claim, Claimed, Operation, Release, Result

__all__ = ["JOURNAL_LIFE", "REPEATABLE", "Batch", "Lane", "check_patience", "elapsed", "retrieve"]

#: A batch is full at either.
MOST_OPERATIONS = 100
MOST_BYTES = 1024 * 1024
#: Beyond this many waiting operations, callers wait for room.
MOST_WAITING = 10_000
#: Seconds for which a backend keeps the number and the results of a lane's last batch.
JOURNAL_LIFE = 600
#: Seconds after its first sending in which a batch may be sent again. Half of the journal's life: the other half is for
#: bytes that the network delays.
REPEATABLE = JOURNAL_LIFE / 2


def elapsed() -> float:
    """Return seconds on a monotonic clock that goes on while the machine is suspended, where there is one."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def check_patience(patience: float, timeout: float) -> None:
    """Raise ``InvalidOption`` if a batch could be sent again when its journal may be gone.

    ``timeout``: how long one attempt may take.
    """
    if not patience + timeout <= REPEATABLE:
        raise InvalidOption(
            f"patience={patience:g} is too long: with its timeouts a call may be tried for at most {REPEATABLE:g} s, "
            f"because a server remembers for {JOURNAL_LIFE} s which writes it has made"
        )


class Batch(tuple[Operation, ...]):
    """Operations of one round trip, with the lane's id and its running number.

    A backend whose connection can break keeps the number and the results of a lane's last batch in the
    same commit: the same number again gives the kept results, a lower one is refused.
    """

    lane: str
    number: int

    @classmethod
    def of(cls, operations: Sequence[Operation], lane: str, number: int) -> Batch:
        """A batch of these operations."""
        batch = cls(operations)
        batch.lane, batch.number = lane, number
        return batch


_Entry: TypeAlias = tuple[Operation, "asyncio.Future[Result]"]


class Lane:
    """A queue in front of ``run``: first in, first out, one batch under way at a time.

    It repeats a batch whose connection broke, under the same number, for ``patience`` seconds, but never after the
    backend may have dropped its journal, also if the process was stopped or suspended meanwhile. Every
    waiter gets a result or an error, whatever ``run`` does.
    """

    def __init__(
        self,
        run: Callable[[Batch], Awaitable[list[Result]]],
        *,
        ids: Callable[[], str],
        patience: float = 10.0,
        pauses: Sequence[float] = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5),
        clock: Callable[[], float] = elapsed,
    ) -> None:
        self._run = run
        self._patience = min(patience, REPEATABLE)
        self._clock = clock
        self._pauses = pauses
        self._id = ids()
        self._number = 0
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Entry] = deque()
        self._crowd: deque[asyncio.Future[None]] = deque()
        self._runner: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def idle(self) -> bool:
        """Nothing waits here, and nothing is under way."""
        return self._runner is None and not self._crowd

    async def submit(self, operation: Operation) -> Any:
        """Queue an operation and wait for its result; its error is raised."""
        if self._closed:
            raise StorageClosed
        if self._crowd or len(self._queue) >= MOST_WAITING:
            room: asyncio.Future[None] = self._loop.create_future()
            self._crowd.append(room)
            try:
                await room
            except asyncio.CancelledError:
                if type(operation) is Release:
                    # A claim must be ended, whoever gave up waiting for it.
                    self._put(operation).add_done_callback(retrieve)
                raise
        future: asyncio.Future[Result] = self._put(operation)
        try:
            result = await future
        except asyncio.CancelledError:
            # The answer may have come in the very moment of the cancellation.
            if future.done() and not future.cancelled() and future.exception() is None:
                self._give_back(operation, future.result())
            raise
        if isinstance(result, Exception):
            raise result
        return result

    def _put(self, operation: Operation) -> asyncio.Future[Result]:
        future: asyncio.Future[Result] = self._loop.create_future()
        self._queue.append((operation, future))
        if self._runner is None:
            self._runner = self._loop.create_task(self._drain(), name="stepwell-lane")
        return future

    async def close(self) -> None:
        """Send what is queued, then refuse more."""
        self._closed = True
        while self._runner is not None:
            await asyncio.wait([self._runner])

    async def _drain(self) -> None:
        try:
            while self._queue or self._crowd:
                entries = self._take()
                if entries:
                    await self._send(entries)
                else:
                    # Those who were just let in from the crowd come next.
                    await asyncio.sleep(0)
        finally:
            self._runner = None
            # Only when the loop itself goes down; nothing else ends this task early.
            for _, future in self._queue:
                future.cancel()
            for room in self._crowd:
                room.cancel()
            self._queue.clear()
            self._crowd.clear()

    def _take(self) -> list[_Entry]:
        entries: list[_Entry] = []
        queue = self._queue
        size = 0
        while queue and len(entries) < MOST_OPERATIONS and size < MOST_BYTES:
            entry = queue.popleft()
            operation, future = entry
            # A waiter that gave up before sending takes its operation along; a claim must still be ended.
            if future.cancelled() and type(operation) is not Release:
                continue
            entries.append(entry)
            if type(operation) is Apply:
                size += _weight(operation)
        for _ in range(min(len(self._crowd), MOST_WAITING - len(self._queue))):
            room = self._crowd.popleft()
            if not room.done():
                room.set_result(None)
        return entries

    async def _send(self, entries: list[_Entry]) -> None:
        """Send a batch, or its halves, until each of its entries is settled."""
        parts = deque([entries])
        try:
            while parts:
                part = parts[0]
                self._number += 1
                batch = Batch.of([operation for operation, _ in part], self._id, self._number)
                try:
                    results = await self._insist(batch)
                except StorageUnavailable as error:
                    # The lane keeps its id: a backend can refuse this number if it arrives after a higher one.
                    for entry in part:
                        self._give_up(entry, error)
                except Exception as error:  # noqa: BLE001 it was rolled back: its waiters are told, the lane lives on
                    if len(part) > 1 and not isinstance(error, StorageFull | StorageClosed):
                        # One operation spoiled the call for all: halves find it in a few steps.
                        half = len(part) // 2
                        parts.popleft()
                        parts.extendleft([part[half:], part[:half]])
                        continue
                    for operation, future in part:
                        # A claim may have been made before the rest of its call failed.
                        self._end_claim(operation)
                        if not future.done():
                            future.set_exception(error if len(part) == 1 else _copied(error))
                else:
                    for (operation, future), result in zip(part, results, strict=True):
                        if not future.done():
                            future.set_result(result)
                        else:
                            self._give_back(operation, result)
                parts.popleft()
        except Exception as error:  # noqa: BLE001 the lane goes on with the next batch
            failed = StorageUnavailable(f"its batch failed ({type(error).__name__})", final=True)
            failed.__cause__ = error
            for entry in [entry for part in parts for entry in part]:
                self._give_up(entry, failed)
        finally:
            for part in parts:
                for _, future in part:
                    future.cancel()

    async def _insist(self, batch: Batch) -> list[Result]:
        give_up = self._clock() + self._patience
        sent = False
        attempt = 0
        while True:
            try:
                results = await self._run(batch)
                if len(results) != len(batch):
                    raise StorageUnavailable(
                        f"the backend gave {len(results)} results for {len(batch)} operations", final=True
                    )
                return results
            except StorageUnavailable as error:
                sent = error.sent = sent or error.sent
                pause = self._pauses[min(attempt, len(self._pauses) - 1)]
                if error.final or self._clock() + pause >= give_up:
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
                # An earlier try may have been applied: what this one says of itself is not the whole truth.
                raise StorageUnavailable(f"it failed after its answer was lost ({type(error).__name__})") from error
            except BaseException as error:
                # Not an Exception: raised as it is, it would end the lane and pass by its callers' handlers.
                raise StorageUnavailable(f"the backend raised {type(error).__name__}", final=True) from error
            await asyncio.sleep(pause)
            if self._clock() >= give_up:
                # The process was stopped, or the machine suspended: the journal of an earlier try may be gone.
                raise last

    def _give_up(self, entry: _Entry, error: StorageUnavailable) -> None:
        operation, future = entry
        outcome = _copied(error)
        if error.sent and type(operation) is Apply:
            outcome = OutcomeUnknown(operation.address.text, str(error))
        elif error.sent:
            # It may have succeeded, and then nobody would be there to end it.
            self._end_claim(operation)
        outcome.__cause__ = error
        if not future.done():
            future.set_exception(outcome)

    def _give_back(self, operation: Operation, result: Result) -> None:
        """End a claim that nobody is left to use."""
        if type(result) is Claimed:
            self._end_claim(operation)

    def _end_claim(self, operation: Operation) -> None:
        if isinstance(operation, Claim) and not operation.renew:
            # If that fails as well, it ends with its lease.
            self._put(Release(operation.address, operation.token)).add_done_callback(retrieve)


def retrieve(future: asyncio.Future[Any]) -> None:
    """When it is done: whoever waits gets the error; if nobody is left, that is nobody's fault."""
    if not future.cancelled():
        future.exception()


def _copied(error: Exception) -> Exception:
    """Return a copy of an error for one of several waiters, or a ``StorageError`` if it cannot be copied."""
    try:
        copied = copy.copy(error)
    except Exception:  # noqa: BLE001 an error class may refuse to be copied in any way
        copied = None
    if type(copied) is type(error):
        return copied
    wrapped = StorageError(f"the storage failed with {type(error).__name__}")
    wrapped.__cause__ = error
    return wrapped


def _weight(apply: Apply) -> int:
    change = apply.change
    size = sum(map(len, change.set.values()))
    return size + sum([len(part or "") for part in change.parts.values()]) if change.parts else size
