"""The items of a batch: a limited number at once, and the results in the order of the items."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Iterable, Iterator, Sized
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from stepwell._secrets import quoted
from stepwell.errors import NodeTimeout, UsageError
from stepwell.errors.wording import counted
from stepwell.nodes.batch.chunk import LARGEST, Chunks, Outcome
from stepwell.nodes.batch.executor import MakeExecutor
from stepwell.nodes.batch.in_loop import close_source, run_in_loop
from stepwell.nodes.batch.remote_chunk import BUDGET
from stepwell.nodes.walk.attempts import attempt
from stepwell.nodes.walk.execution import Cursor, enter
from stepwell.nodes.walk.on_error import Failed, OnError, add_note, attach, conclude, exit_of, inside_cancelled
from stepwell.nodes.walk.thread_pool import SIZE, ThreadPool
from stepwell.nodes.walk.threads import ExecutorFailed
from stepwell.nodes.walk.workgroup import TASK_GROUPS_UNCANCEL, Halt, WorkGroup

if TYPE_CHECKING:
    from stepwell.nodes.graph.plan import Stage
    from stepwell.nodes.walk.execution import EventKind, Execution, Limiter

__all__ = ["BatchRun", "BatchSettings", "run_items"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """The settings of a batch for its items."""

    #: How many run at once; ``None`` is all of them.
    concurrency: int | None = 1
    on_error: OnError = "stop"
    #: An executor, or the function that makes one.
    executor: Executor | MakeExecutor | None = None


async def run_items(stage: Stage, cursor: Cursor, node: Any, prep_res: Any, shared: Any) -> list[Any]:
    """Run a batch's ``exec`` on every item and return the results in the order of the items."""
    run = cursor.run
    settings: BatchSettings = stage.extra
    source = stage.items(stage, prep_res)
    simple = settings.concurrency == 1 and settings.on_error == "stop" and run.emit is None
    if simple and isinstance(source, Iterable) and _is_direct(stage, run.limiter(stage)):
        return await run_in_loop(stage, cursor, node, source)
    return await BatchRun(stage, cursor, node, source).run_all()


def _is_direct(stage: Stage, limiter: Limiter) -> bool:
    """Return whether ``exec`` needs no attempts, no thread and no limiter."""
    return stage.policy.plain and not (stage.has_fallback or stage.threaded or limiter.semaphores)


class BatchRun:
    """One run of one batch.

    Up to ``concurrency`` workers take items one after the other, and write their results to ``results``.
    """

    def __init__(self, stage: Stage, cursor: Cursor, node: Any, source: Iterable[Any] | AsyncIterable[Any]) -> None:
        self.run: Execution = cursor.run
        self.stage = stage
        self.node = node
        self.settings: BatchSettings = stage.extra
        self.limiter: Limiter = cursor.run.limiter(stage)
        self._direct = _is_direct(stage, self.limiter)
        self.results: list[Any] = []
        self.failures: list[Exception] = []
        #: The attempt with which the first item failed.
        self._failed_attempt = 1
        #: The error of the batch as a whole: its items could not be read, or its results not be stored.
        self.fatal: Exception | None = None
        self.done: int = 0
        self.total: int | None = len(source) if isinstance(source, Sized) else None
        #: The most items in one chunk.
        self.largest_chunk: int | None = None
        self._cursor = cursor
        self._source = source
        self._workers = 0
        self._taken = 0
        self._exhausted = False
        #: The worker of the run stops, and items are left.
        self.drained: bool = False
        self._halted = False
        self._group: WorkGroup | None = None
        self._chunks: Chunks | None = None
        self._async_iterator = None
        if isinstance(source, Iterable):
            self._iterator: Iterator[tuple[int, Any]] = enumerate(source)
        else:
            if cursor.run.without_loop:
                raise UsageError(
                    f"prep of batch {quoted(stage.path)} returned an async iterable, which needs an event loop: "
                    "declare prep as async def, or await flow.run()"
                )
            self._async_iterator = aiter(source)
            self._lock = asyncio.Lock()

    @property
    def left(self) -> int | None:
        """The number of items that no worker has taken yet, if it is known."""
        return None if self.total is None else self.total - self._taken

    async def run_all(self) -> list[Any]:
        """Run every item, then return the results or raise according to ``on_error``."""
        pool: ThreadPool | None = None
        if self.stage.threaded and self.stage.policy.replay == "safe":
            executor: Executor | ThreadPool | MakeExecutor | None = self.settings.executor
            if executor is None and self.settings.concurrency != 1:
                executor = pool = ThreadPool(self.settings.concurrency or SIZE, "stepwell-batch")
            self._chunks = Chunks(self.stage, self.node, executor)
        try:
            await self._start_workers()
        except BaseException as error:
            attach(error, self.failures)
            raise
        finally:
            if pool is not None:
                pool.close()
            if self._chunks is not None:
                await self._chunks.executor.close()
            await close_source(self._source)
        self._cursor.attempt = self._failed_attempt
        if self.drained and self.fatal is None and self.settings.on_error != "stop":
            # Whether it fails is decided when all items have run.
            return self.results
        conclude(
            self.settings.on_error,
            self.failures,
            f"of {counted(len(self.results), 'item')} of batch {quoted(self.stage.path)}",
            fatal=self.fatal,
        )
        return self.results

    async def _start_workers(self) -> None:
        left = self.left
        if left == 0:
            return
        if self.settings.concurrency == 1 and (self.run.without_loop or TASK_GROUPS_UNCANCEL):
            with suppress(Halt):
                await self._work(self._cursor)
        else:
            async with WorkGroup() as self._group:
                if left is None:
                    self._add_worker()
                else:
                    # Started in one turn of the loop, items that take equally long end in their order.
                    for _ in range(min(self.settings.concurrency or left, left)):
                        self._group.create_task(self._work_in_task())

    def _add_worker(self) -> None:
        """Add a worker, if the number of items is unknown and ``concurrency`` allows it."""
        most = self.settings.concurrency
        if self.total is not None or self._group is None or (most is not None and self._workers >= most):
            return
        self._workers += 1
        self._group.create_task(self._work_in_task())

    async def _work_in_task(self) -> None:
        cursor = self._cursor.copy()
        enter(cursor)
        await self._work(cursor)

    async def _work(self, cursor: Cursor) -> None:
        if self._chunks is not None:
            try:
                await self._work_in_chunks(self._chunks, cursor)
            except ExecutorFailed as failure:
                if self.fatal is None:
                    self.fatal = failure.error
                    self.fatal.add_note(self._chunks.executor.advice(failure.error))
                raise self.halt() from None
            return
        while (taken := await self.take()) is not None:
            index, item = taken
            cursor.item = index
            await self.settle(cursor, item, self._result(cursor, item))
            # A durable batch yields after a save, when no result waits for the next one.
            if cursor.branch is None and not index & 15 and perf_counter() > self.run.yield_at:
                await self.run.yield_now()

    async def _result(self, cursor: Cursor, item: Any) -> Any:
        if self._direct:
            result = self.stage.exec(self.node, item)
            return await result if type(result) is CoroutineType else result
        if not self.limiter.semaphores:
            return await attempt(self.stage, cursor, self.node, item)
        async with self.limiter:
            return await attempt(self.stage, cursor, self.node, item)

    async def _work_in_chunks(self, chunks: Chunks, cursor: Cursor) -> None:
        """Run one chunk after the other, outside the event loop."""
        pending: deque[tuple[int, Any]] = deque()
        size = 1
        while True:
            size = min(size, self._fair_share())
            while len(pending) < size:
                taken = await self.take()
                if taken is None:
                    break
                pending.append(taken)
            if not pending:
                return
            chunk = [pending.popleft() for _ in range(min(size, len(pending)))]
            began = perf_counter()
            outcomes = await self._run_chunk(chunks, cursor, chunk)
            if not outcomes:
                # The executor broke. One by one, fewer items are lost if the next one breaks too.
                pending.extendleft(reversed(chunk))
                size = 1
                continue
            took = perf_counter() - began
            for (index, item), outcome in zip(chunk, outcomes, strict=False):
                if outcome.ok and type(outcome.value) is not CoroutineType:
                    self.succeed(index, outcome.value)
                    continue
                cursor.item = index
                await self.settle(cursor, item, self._retry(chunks, cursor, item, outcome))
            pending.extendleft(reversed(chunk[len(outcomes) :]))
            if self.stage.policy.timeout is not None:
                # Each item has its own timeout, so each is a chunk of its own.
                continue
            if took < BUDGET / 2:
                size = min(size * 2, LARGEST)
            elif took > BUDGET:
                size = max(1, len(outcomes) // 2)

    def _fair_share(self) -> int:
        """Return the size of the largest chunk that leaves enough items to the other workers."""
        if self._async_iterator is not None:
            # The next item may take long, so a chunk does not wait for it.
            return 1
        largest, left = self.largest_chunk or LARGEST, self.left
        if left is None or self.settings.concurrency is None:
            return largest
        return min(largest, max(1, left // self.settings.concurrency))

    async def _run_chunk(self, chunks: Chunks, cursor: Cursor, chunk: list[tuple[int, Any]]) -> list[Outcome]:
        """Run a chunk under the limiter; return nothing if the executor broke and a new one can run the chunk."""
        cursor.item, cursor.attempt = chunk[0][0], 1

        def record_errors(outcomes: list[Outcome]) -> None:
            # Another item has ended the batch while this chunk ran: keep the errors of this one too.
            for (index, item), outcome in zip(chunk, outcomes, strict=False):
                if not outcome.ok and isinstance(outcome.value, Exception):
                    self.record(index, item, outcome.value)

        try:
            async with self.limiter:
                return await chunks.send(cursor, chunk, record_errors)
        except NodeTimeout as error:
            return [Outcome(False, error)]

    async def _retry(self, chunks: Chunks, cursor: Cursor, item: Any, first: Outcome) -> Any:
        """Make the remaining attempts of an item; the chunk has made the first one."""
        if first.ok:
            return await first.value
        if not isinstance(first.value, Exception):
            raise first.value
        async with self.limiter:
            return await attempt(self.stage, cursor, self.node, item, call=chunks.call, failed=first.value)

    async def take(self) -> tuple[int, Any] | None:
        """Return the index of the next item and the item, or ``None`` if the batch has no more or has ended."""
        if self._halted or self._exhausted:
            return None
        if self.run.cancelling():
            # The previous item suppressed the cancellation; the worker must still end.
            raise asyncio.CancelledError
        try:
            if self._async_iterator is None:
                index, item = next(self._iterator)
            else:
                async with self._lock:
                    item = await anext(self._async_iterator)
                index = self._taken
        except (StopIteration, StopAsyncIteration):
            self._exhausted = True
            return None
        except Exception as error:  # noqa: BLE001 - conclude() raises it
            self.fatal = error
            raise self.halt() from None
        self._taken += 1
        if index == len(self.results):
            self.results.append(None)
        self._add_worker()
        if self.run.emit is not None:
            self._emit("item.started", index)
        return index, item

    async def settle(self, cursor: Cursor, item: Any, work: Any) -> None:
        """Await the work on an item, and record its result or its error."""
        index, cursor.effects = cursor.item, None
        assert index is not None
        try:
            result = await work
        except Exception as error:  # noqa: BLE001 - conclude() decides what becomes of it
            self.fail(index, item, error, cursor.attempt)
        except asyncio.CancelledError as cancelled:
            if self.run.cancelling():
                if isinstance(cancelled.__context__, Exception):
                    # It waited for another attempt or for its fallback.
                    self.record(index, item, cancelled.__context__, cursor.attempt)
                raise
            inside = inside_cancelled(f"item {index} of batch {quoted(self.stage.path)}", cancelled)
            self.fail(index, item, inside, cursor.attempt)
        except BaseException as error:
            place = f"item {index} of batch {quoted(self.stage.path)}"
            if cursor.branch is None or not (exited := exit_of(place, error, in_thread=self.stage.threaded)):
                raise
            # A task that raises SystemExit stops the event loop before the error is stored.
            self.fail(index, item, exited, cursor.attempt)
        else:
            self.succeed(index, result)

    def succeed(self, index: int, result: Any) -> None:
        self.results[index] = result
        self.done += 1
        if self.run.emit is not None:
            self._emit("item.finished", index)
            self._emit("node.progress", None, done=self.done, total=self.total)

    def fail(self, index: int, item: Any, error: Exception, attempt: int = 1) -> None:
        """Record the last error of an item; ``"stop"`` then ends the batch."""
        self.record(index, item, error, attempt)
        if self.settings.on_error == "stop":
            raise self.halt()

    def record(self, index: int, item: Any, error: Exception, attempt: int = 1) -> None:
        add_note(error, f"item {index} of batch {quoted(self.stage.path)}")
        if not self.failures:
            self._failed_attempt = attempt
        self.failures.append(error)
        self.results[index] = Failed(item, error)
        self.done += 1
        if self.run.emit is not None:
            self._emit("item.failed", index, error=error, attempt=attempt)
            self._emit("node.progress", None, done=self.done, total=self.total)

    def halt(self) -> Halt:
        """Let no worker take another item, and return the exception that ends the other workers."""
        self._halted = True
        return Halt()

    def _emit(self, kind: EventKind, index: int | None, *, attempt: int = 1, **fields: Any) -> None:
        assert self.run.emit is not None
        visit = self.run.visits[self.stage.index]
        cursor = Cursor(self.run, self.stage.path, visit=visit, item=index, attempt=attempt)
        self.run.emit(kind, cursor, **fields)
