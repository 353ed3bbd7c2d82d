"""Chunks of items that run outside the event loop, in threads or in an executor."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor
from types import CoroutineType
from typing import TYPE_CHECKING, Any, NamedTuple

from stepwell.errors import NodeTimeout
from stepwell.nodes.batch.executor import BatchExecutor, MakeExecutor, reason_of
from stepwell.nodes.batch.remote_chunk import (
    BUDGET,
    NodeBlob,
    dumps,
    loads,
    not_picklable,
    pickles_by_value,
    run_in_worker,
)
from stepwell.nodes.walk.attempts import attempt
from stepwell.nodes.walk.cursor import Cursor, current
from stepwell.nodes.walk.thread_pool import ThreadPool
from stepwell.nodes.walk.threads import ExecutorFailed, in_thread, result_of, settled

if TYPE_CHECKING:
    from stepwell.nodes.batch.items import BatchRun
    from stepwell.nodes.graph.plan import Stage

__all__ = ["Chunks"]

#: Items with their indexes.
Pairs = list[tuple[int, Any]]

#: The most items in a chunk. Chunks grow while they are quick, so that many short items share one thread switch.
_LARGEST = 1024


class Outcome(NamedTuple):
    """The result or the error of one item. A chunk ends with its first failed item."""

    ok: bool
    value: Any


def _raise_failure(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        if not outcome.ok:
            raise outcome.value


class Chunks:
    """Sends the items of one batch to threads or to an executor, in chunks."""

    def __init__(self, stage: Stage, node: Any, executor: Executor | ThreadPool | MakeExecutor | None) -> None:
        self._stage = stage
        self._node = node
        self.executor: BatchExecutor = BatchExecutor(stage.path, executor)
        self._blob: NodeBlob | None = None
        #: The last executor that broke.
        self._broken: Executor | None = None

    async def work(self, batch: BatchRun, cursor: Cursor) -> None:
        """Run one worker of the batch, one chunk after the other."""
        try:
            await self._work(batch, cursor)
        except ExecutorFailed as failure:
            if batch.fatal is None:
                batch.fatal = failure.error
                batch.fatal.add_note(self.executor.advice(failure.error))
            raise batch.halt() from None

    async def _work(self, batch: BatchRun, cursor: Cursor) -> None:
        pending: deque[tuple[int, Any]] = deque()
        size = 1
        while True:
            size = min(size, self._fair_share(batch))
            while len(pending) < size:
                taken = await batch.take()
                if taken is None:
                    break
                pending.append(taken)
            if not pending:
                return
            chunk = [pending.popleft() for _ in range(min(size, len(pending)))]
            began = time.perf_counter()
            outcomes = await self._run(batch, cursor, chunk)
            if not outcomes:
                # The executor broke. One by one, fewer items are lost if the next one breaks too.
                pending.extendleft(reversed(chunk))
                size = 1
                continue
            took = time.perf_counter() - began
            for (index, item), (ok, value) in zip(chunk, outcomes, strict=False):
                if ok and type(value) is not CoroutineType:
                    batch.succeed(index, value)
                    continue
                cursor.item = index
                await batch.settle(cursor, item, self._retry(batch, cursor, item, ok, value))
            pending.extendleft(reversed(chunk[len(outcomes) :]))
            if self._stage.policy.timeout is not None:
                # Each item has its own timeout, so each is a chunk of its own.
                continue
            if took < BUDGET / 2:
                size = min(size * 2, _LARGEST)
            elif took > BUDGET:
                size = max(1, len(outcomes) // 2)

    def _fair_share(self, batch: BatchRun) -> int:
        """Return the size of the largest chunk that leaves enough items to the other workers."""
        if batch.streaming:
            return 1
        largest = batch.largest_chunk or _LARGEST
        left = batch.left
        if left is None or batch.settings.concurrency is None:
            return largest
        return min(largest, max(1, left // batch.settings.concurrency))

    async def _retry(self, batch: BatchRun, cursor: Cursor, item: Any, ok: bool, value: Any) -> Any:
        """Make the remaining attempts of an item; the chunk has made the first one."""
        if ok:
            return await value
        if not isinstance(value, Exception):
            raise value
        async with batch.limiter:
            return await attempt(self._stage, cursor, self._node, item, call=self._call, failed=value)

    async def _call(self, stage: Stage, cursor: Cursor, node: Any, item: Any) -> Any:
        assert cursor.item is not None
        outcomes: list[Outcome] = []
        while not outcomes:
            outcomes = await self._send(cursor, [(cursor.item, item)], _raise_failure)
        _raise_failure(outcomes)
        (outcome,) = outcomes
        return await outcome.value if type(outcome.value) is CoroutineType else outcome.value

    async def _run(self, batch: BatchRun, cursor: Cursor, chunk: Pairs) -> list[Outcome]:
        """Run a chunk under the limiter; return nothing if the executor broke and a new one can run the chunk."""
        cursor.item, cursor.attempt = chunk[0][0], 1

        def record_errors(outcomes: list[Outcome]) -> None:
            # Another item has ended the batch while this chunk ran: keep the errors of this one too.
            for (index, item), (ok, value) in zip(chunk, outcomes, strict=False):
                if not ok and isinstance(value, Exception):
                    batch.record(index, item, value)

        try:
            async with batch.limiter:
                return await self._send(cursor, chunk, record_errors)
        except NodeTimeout as error:
            return [Outcome(False, error)]

    async def _send(self, cursor: Cursor, chunk: Pairs, late: Callable[[list[Outcome]], None]) -> list[Outcome]:
        """Run a chunk elsewhere; return nothing if the executor broke and a new one can run the chunk.

        ``late`` gets the outcomes if this call is cancelled meanwhile.
        """
        executor = self.executor.get()
        try:
            if isinstance(executor, Executor) and not isinstance(executor, ThreadPoolExecutor):
                # Only threads share the memory of this process.
                return await self._send_pickled(executor, cursor, chunk, late)
            outcomes: list[Outcome] = await in_thread(
                self._stage.path,
                cursor,
                *(run_in_thread, self._stage.exec, self._node, chunk),
                timeout=self._stage.policy.timeout,
                pool=executor,
                late=late,
            )
        except ExecutorFailed as failure:
            await self.executor.replace(executor, failure, [index for index, _ in chunk])
            return []
        return outcomes

    async def _send_pickled(
        self, executor: Executor, cursor: Cursor, chunk: Pairs, late: Callable[[list[Outcome]], None]
    ) -> list[Outcome]:
        stage = self._stage
        if self._blob is None:
            self._blob = self._pickled_node(pickles_by_value(executor))
        blobs: list[tuple[int, bytes]] = []
        for index, item in chunk:
            try:
                blobs.append((index, dumps(item, self._blob.by_value)))
            except Exception as error:  # noqa: BLE001 - pickling raises whatever the item's class raises
                if not blobs:
                    return [Outcome(False, not_picklable(stage.path, f"item {index}", error))]
                # The next chunk begins with this item.
                break
        try:
            job = executor.submit(run_in_worker, self._blob, cursor.values(), blobs)
        except Exception as error:
            raise ExecutorFailed(reason_of(error, executor)) from error
        future = asyncio.wrap_future(job)
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError:
            if executor is not self._broken:
                # The thread of a broken process pool fails on a future that is cancelled.
                job.cancel()
            await settled(future)
            if not future.cancelled() and future.exception() is None:
                late(self._unpickled(future.result()))
            raise
        try:
            outcomes = result_of(future, stage.path)
        except Exception as error:
            if isinstance(error, BrokenExecutor):
                self._broken = executor
            raise ExecutorFailed(error) from error
        return self._unpickled(outcomes)

    def _pickled_node(self, by_value: bool) -> NodeBlob:
        stage = self._stage
        bare = stage.cls.__new__(stage.cls)
        # The rest of the graph is not needed there, and an executor cannot be pickled.
        bare.__dict__ = {**self._node.__dict__, "successors": {}, "executor": None}
        try:
            return NodeBlob(dumps(bare, by_value), stage.node._hooks.exec, by_value)
        except Exception as error:  # noqa: BLE001 - pickling raises whatever the class raises
            failure = not_picklable(stage.path, "the node itself", error)
            # No item of the batch can run.
            raise ExecutorFailed(failure) from failure

    def _unpickled(self, outcomes: list[tuple[bool, bytes]]) -> list[Outcome]:
        unpickled = []
        for ok, blob in outcomes:
            try:
                unpickled.append(Outcome(ok, loads(blob)))
            except Exception as error:  # noqa: BLE001 - unpickling raises whatever the value's class raises
                unpickled.append(Outcome(False, not_picklable(self._stage.path, "a result", error)))
                break
        return unpickled


def run_in_thread(exec_: Callable[[Any, Any], Any], node: Any, chunk: Pairs) -> list[Outcome]:
    """Run a chunk in this thread."""
    cursor = current()
    assert cursor is not None
    outcomes: list[Outcome] = []
    until = time.perf_counter() + BUDGET
    for index, item in chunk:
        cursor.item = index
        try:
            outcomes.append(Outcome(True, exec_(node, item)))
        except BaseException as error:  # noqa: BLE001 - raised where the chunk is awaited
            outcomes.append(Outcome(False, error))
            break
        if time.perf_counter() > until:
            break
    return outcomes
