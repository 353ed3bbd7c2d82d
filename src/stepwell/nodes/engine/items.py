"""The items of a batch: a window of concurrent ones, and results in their order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Generator, Iterable, Sized
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from stepwell.errors import UsageError
from stepwell.nodes.engine.attempts import attempt
from stepwell.nodes.engine.chunk import Chunks
from stepwell.nodes.engine.on_error import Failed, OnError, attach, conclude, inside_cancelled
from stepwell.nodes.engine.position import Cursor, enter
from stepwell.nodes.engine.thread_pool import SIZE, ThreadPool
from stepwell.nodes.engine.workgroup import CANCELLATIONS_ARE_COUNTED_RIGHT, Halt, WorkGroup

if TYPE_CHECKING:
    from stepwell.nodes.engine.plan import Stage

__all__ = ["BatchRun", "BatchSettings", "run_items"]


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """How the items of a batch run."""

    #: How many at once; ``None`` is all of them.
    concurrency: int | None
    on_error: OnError
    executor: Executor | None


async def run_items(stage: Stage, cursor: Cursor, node: Any, prep_res: Any, shared: Any) -> list[Any]:
    """Run a batch's ``exec`` on every item and return the results in the order of the items."""
    run = cursor.run
    settings: BatchSettings = stage.extra
    source = stage.items(stage, prep_res)
    limiter = run.limiter(stage)
    direct = stage.policy.plain and not stage.has_fallback and not stage.threaded
    if (
        direct
        and settings.concurrency == 1
        and settings.on_error == "stop"
        and limiter is None
        and run.emit is None
        and isinstance(source, Iterable)
    ):
        return await _one_by_one(stage, cursor, node, source)
    batch = BatchRun(stage, cursor, node, source)
    batch.limiter, batch.direct = limiter, direct
    return await batch.run_all()


async def _one_by_one(stage: Stage, cursor: Cursor, node: Any, source: Iterable[Any]) -> list[Any]:
    """The same as :class:`BatchRun` for the plainest of batches, at the cost of a loop."""
    run = cursor.run
    results: list[Any] = []
    add = results.append
    work = stage.exec
    index = -1
    try:
        for index, item in enumerate(source):
            cursor.item = index
            result = work(node, item)
            if type(result) is CoroutineType:
                result = await result
            add(result)
    except Exception as error:
        # Fewer results than items begun: the item has failed, not the iterable.
        if len(results) == index:
            error.add_note(f"item {index} of batch {stage.path!r}")
        raise
    except asyncio.CancelledError as cancelled:
        if run.cancelling() or run.without_loop:
            raise
        raise inside_cancelled(f"item {index} of batch {stage.path!r}", cancelled) from cancelled
    finally:
        if isinstance(source, Generator):
            source.close()
    return results


class BatchRun:
    """One run of one batch.

    Workers, never more than the window, take items as they come; each item's result goes to its
    place in ``results`` as soon as it has one.
    """

    def __init__(self, stage: Stage, cursor: Cursor, node: Any, source: Iterable[Any] | AsyncIterable[Any]) -> None:
        settings: BatchSettings = stage.extra
        self.run = run = cursor.run
        self.stage = stage
        self.node = node
        self.settings = settings
        self.limiter: Any = None
        self.direct = False
        self.results: list[Any] = []
        self.failures: list[Exception] = []
        self.fatal: Exception | None = None
        self.done = 0
        self.total = len(source) if isinstance(source, Sized) else None
        #: Items may come slowly: none waits for the next one.
        self.streaming = not isinstance(source, Iterable)
        #: The most items that go to a thread or an executor together.
        self.largest_chunk: int | None = None
        self._cursor = cursor
        self._source = source
        self._workers = 0
        self._exhausted = False
        self._halted = False
        self._group: WorkGroup | None = None
        self._chunks: Chunks | None = None
        if isinstance(source, Iterable):
            self._iterator = iter(source)
            self._async_iterator = None
        else:
            if run.without_loop:
                raise UsageError(
                    f"prep of batch {stage.path!r} gave an async iterable, which needs an event loop: "
                    "declare prep as async def, or await flow.run()"
                )
            self._async_iterator = aiter(source)
            self._lock = asyncio.Lock()

    @property
    def left(self) -> int | None:
        """How many items nobody has taken yet, where that is known."""
        return None if self.total is None else self.total - len(self.results)

    async def run_all(self) -> list[Any]:
        """Run every item, then raise what the policy says or return the results."""
        pool: ThreadPool | None = None
        if self.stage.threaded:
            executor: Executor | ThreadPool | None = self.settings.executor
            if executor is None and self.settings.concurrency != 1:
                executor = pool = ThreadPool(self.settings.concurrency or SIZE, "stepwell-batch")
            self._chunks = Chunks(self.stage, self.node, executor)
        try:
            await self._work_off()
        except BaseException as error:
            attach(error, self.failures)
            raise
        finally:
            if pool is not None:
                pool.close()
            await self._close_source()
        conclude(
            self.settings.on_error,
            self.failures,
            f"of {len(self.results)} items of batch {self.stage.path!r}",
            fatal=self.fatal,
        )
        return self.results

    async def _work_off(self) -> None:
        left = self.left
        if left == 0:
            return
        if self.settings.concurrency == 1 and (self.run.without_loop or CANCELLATIONS_ARE_COUNTED_RIGHT):
            with suppress(Halt):
                await self._work(self._cursor)
        else:
            async with WorkGroup() as self._group:
                if left is None:
                    self._widen()
                else:
                    # All in one turn of the loop: items that take equally long then end in their order.
                    for _ in range(min(self.settings.concurrency or left, left)):
                        self._group.create_task(self._work_in_task())

    def _widen(self) -> None:
        """Add a worker if there may be another item and the window has room; the number of items is not known."""
        window = self.settings.concurrency
        if self.total is not None:
            return
        if self._group is None or self._exhausted or self._halted or (window is not None and self._workers >= window):
            return
        self._workers += 1
        self._group.create_task(self._work_in_task())

    async def _work_in_task(self) -> None:
        cursor = self._cursor.copy()
        enter(cursor)
        await self._work(cursor)

    async def _work(self, cursor: Cursor) -> None:
        if self._chunks is not None:
            await self._chunks.work(self, cursor)
            return
        while (taken := await self.take()) is not None:
            index, item = taken
            cursor.item = index
            await self.settle(cursor, item, self._result(cursor, item))

    async def _result(self, cursor: Cursor, item: Any) -> Any:
        if self.limiter is not None:
            async with self.limiter:
                return await attempt(self.stage, cursor, self.node, item)
        if self.direct:
            result = self.stage.exec(self.node, item)
            return await result if type(result) is CoroutineType else result
        return await attempt(self.stage, cursor, self.node, item)

    async def take(self) -> tuple[int, Any] | None:
        """The next item and its place, or ``None`` when there is none or the batch has ended."""
        if self._halted or self._exhausted:
            return None
        if self.run.cancelling():
            # The item before has swallowed its cancellation; the worker must not.
            raise asyncio.CancelledError
        try:
            if self._async_iterator is None:
                item = next(self._iterator)
            else:
                async with self._lock:
                    item = await anext(self._async_iterator)
        except (StopIteration, StopAsyncIteration):
            self._exhausted = True
            return None
        except Exception as error:  # noqa: BLE001 - conclude() raises it
            self.fatal = error
            raise self.halt() from None
        index = len(self.results)
        self.results.append(None)
        self._widen()
        if self.run.emit is not None:
            self._tell("item.started", index)
        return index, item

    async def settle(self, cursor: Cursor, item: Any, work: Any) -> None:
        """Await an item's work and put down how it ended."""
        index = cursor.item
        assert index is not None
        try:
            result = await work
        except Exception as error:  # noqa: BLE001 - conclude() decides what becomes of it
            self.fail(index, item, error, cursor.attempt)
        except asyncio.CancelledError as cancelled:
            if self.run.cancelling():
                if isinstance(cancelled.__context__, Exception):
                    # It waited for another attempt or for its fallback: this is its last error.
                    self.record(index, item, cancelled.__context__, cursor.attempt)
                raise
            inside = inside_cancelled(f"item {index} of batch {self.stage.path!r}", cancelled)
            self.fail(index, item, inside, cursor.attempt)
        else:
            self.succeed(index, result)

    def succeed(self, index: int, result: Any) -> None:
        self.results[index] = result
        self.done += 1
        if self.run.emit is not None:
            self._tell("item.finished", index)
            self._tell("node.progress", None, done=self.done, total=self.total)

    def fail(self, index: int, item: Any, error: Exception, attempt: int = 1) -> None:
        """Put down an item's last error; under ``"stop"`` that ends the batch."""
        self.record(index, item, error, attempt)
        if self.settings.on_error == "stop":
            raise self.halt()

    def record(self, index: int, item: Any, error: Exception, attempt: int = 1) -> None:
        error.add_note(f"item {index} of batch {self.stage.path!r}")
        self.failures.append(error)
        self.results[index] = Failed(item, error)
        self.done += 1
        if self.run.emit is not None:
            self._tell("item.failed", index, error=error, attempt=attempt)
            self._tell("node.progress", None, done=self.done, total=self.total)

    def halt(self) -> Halt:
        self._halted = True
        return Halt()

    def _tell(self, kind: str, index: int | None, *, attempt: int = 1, **fields: Any) -> None:
        assert self.run.emit is not None
        place = Cursor(self.run, self.stage.path, self.run.visits[self.stage.index], index, attempt)
        self.run.emit(kind, place, **fields)

    async def _close_source(self) -> None:
        if isinstance(self._source, Generator):
            self._source.close()
        elif isinstance(self._source, AsyncGenerator):
            await self._source.aclose()
