"""Chunks of items that run outside the event loop, in threads or in an executor."""

from __future__ import annotations

import asyncio
import pickle
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor
from types import CoroutineType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from stepwell.errors import ExecutorError, NodeTimeout
from stepwell.nodes.engine.attempts import attempt
from stepwell.nodes.engine.position import Cursor, Step, current, enter, leave
from stepwell.nodes.engine.thread_pool import ThreadPool
from stepwell.nodes.engine.threads import ExecutorFailed, in_thread, result_of, settled

if TYPE_CHECKING:
    from stepwell.nodes.engine.items import BatchRun
    from stepwell.nodes.engine.plan import Stage

__all__ = ["Chunks"]

#: Items with their indexes.
Pairs = list[tuple[int, Any]]

#: Seconds after which a chunk runs no further items, so that slow items are spread over all workers.
_BUDGET = 0.02
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

    def __init__(self, stage: Stage, node: Any, executor: Executor | ThreadPool | None) -> None:
        self._stage = stage
        self._node = node
        self._executor = executor
        #: Whether items are pickled: only threads share the memory of this process.
        self._remote = executor is not None and not isinstance(executor, ThreadPoolExecutor | ThreadPool)
        self._blob: bytes | None = None
        self._broken = False

    async def work(self, batch: BatchRun, cursor: Cursor) -> None:
        """Run one worker of the batch, one chunk after the other."""
        try:
            await self._work(batch, cursor)
        except ExecutorFailed as failure:
            if batch.fatal is None:
                batch.fatal = failure.error
                batch.fatal.add_note(
                    f"the executor of batch {self._stage.path!r} failed, not one of the items; give the node another "
                    "executor. A durable run has stored the results so far, and can be resumed"
                )
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
            if outcomes is None:
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
            if took < _BUDGET / 2:
                size = min(size * 2, _LARGEST)
            elif took > _BUDGET:
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
        (outcome,) = await self._send(cursor, [(cursor.item, item)], _raise_failure)
        _raise_failure([outcome])
        return await outcome.value if type(outcome.value) is CoroutineType else outcome.value

    async def _run(self, batch: BatchRun, cursor: Cursor, chunk: Pairs) -> list[Outcome] | None:
        """Run a chunk under the limiter; return ``None`` if the chunk has failed as a whole."""
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
        except Exception as error:  # noqa: BLE001 - it becomes the error of its items
            # The node cannot be pickled, so no item of the chunk can run.
            for index, item in chunk:
                batch.fail(index, item, error)
            return None

    async def _send(self, cursor: Cursor, chunk: Pairs, late: Callable[[list[Outcome]], None]) -> list[Outcome]:
        """Run a chunk elsewhere; ``late`` gets its outcomes if this call is cancelled meanwhile."""
        stage = self._stage
        if not self._remote:
            outcomes: list[Outcome] = await in_thread(
                stage.path,
                cursor,
                *(run_in_thread, stage.exec, self._node, chunk),
                timeout=stage.policy.timeout,
                pool=self._executor,
                late=late,
            )
            return outcomes
        assert isinstance(self._executor, Executor)
        blobs: list[tuple[int, bytes]] = []
        for index, item in chunk:
            try:
                blobs.append((index, pickle.dumps(item)))
            except Exception as error:  # noqa: BLE001 - pickling raises whatever the item's class raises
                if not blobs:
                    return [Outcome(False, _not_picklable(stage.path, f"item {index}", error))]
                # The next chunk begins with this item.
                break
        if self._blob is None:
            self._blob = self._pickled_node()
        try:
            job = self._executor.submit(run_in_worker, self._blob, stage.node._hooks.exec, cursor.step(), blobs)
        except Exception as error:
            raise ExecutorFailed(error) from error
        future = asyncio.wrap_future(job)
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError:
            if not self._broken:
                # The thread of a broken process pool fails on a future that is cancelled.
                job.cancel()
            await settled(future)
            if not future.cancelled() and future.exception() is None:
                late(self._unpickled(future.result()))
            raise
        try:
            return self._unpickled(result_of(future, stage.path))
        except BrokenExecutor as error:
            self._broken = True
            raise ExecutorFailed(error) from error

    def _pickled_node(self) -> bytes:
        stage = self._stage
        bare = stage.cls.__new__(stage.cls)
        # The rest of the graph is not needed there, and an executor cannot be pickled.
        bare.__dict__ = {**self._node.__dict__, "successors": {}, "executor": None}
        try:
            return pickle.dumps(bare)
        except Exception as error:
            raise _not_picklable(stage.path, "the node itself", error) from error

    def _unpickled(self, outcomes: list[tuple[bool, bytes]]) -> list[Outcome]:
        unpickled = []
        for ok, blob in outcomes:
            try:
                unpickled.append(Outcome(ok, _loads(blob)))
            except Exception as error:  # noqa: BLE001 - unpickling raises whatever the value's class raises
                unpickled.append(Outcome(False, _not_picklable(self._stage.path, "a result", error)))
                break
        return unpickled


def _loads(blob: bytes) -> Any:
    """Unpickle a value that this run sent to its executor or got back; never data from a storage."""
    return pickle.loads(blob)  # noqa: S301 - pickled by this run


def run_in_thread(exec_: Callable[[Any, Any], Any], node: Any, chunk: Pairs) -> list[Outcome]:
    """Run a chunk in this thread."""
    cursor = current()
    assert cursor is not None
    outcomes: list[Outcome] = []
    until = time.perf_counter() + _BUDGET
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


def run_in_worker(node_blob: bytes, name: str, step: Step, blobs: list[tuple[int, bytes]]) -> list[tuple[bool, bytes]]:
    """Run a chunk in a worker of an executor, which may be another process."""
    node = _loads(node_blob)
    # step() needs no more of the execution in another process.
    run: Any = SimpleNamespace(flow_id=step.flow_id)
    cursor = Cursor(run, step.node, step.visit, None, step.attempt)
    token = enter(cursor)
    outcomes: list[tuple[bool, bytes]] = []
    until = time.perf_counter() + _BUDGET
    try:
        for index, blob in blobs:
            cursor.item = index
            try:
                result = getattr(node, name)(_loads(blob))
            except KeyboardInterrupt:
                # Ctrl-C interrupts every process of the terminal.
                raise
            except BaseException as error:  # noqa: BLE001 - raised where the chunk is awaited
                outcomes.append((False, _pickled_error(error, step.node)))
                break
            try:
                outcomes.append((True, pickle.dumps(result)))
            except Exception as error:  # noqa: BLE001 - pickling raises whatever the result's class raises
                failure = _not_picklable(step.node, f"the result of item {index}", error)
                outcomes.append((False, _pickled_error(failure, step.node)))
                break
            if time.perf_counter() > until:
                break
    finally:
        leave(token)
    return outcomes


def _pickled_error(error: BaseException, node: str) -> bytes:
    # A traceback cannot be pickled, so its text becomes a note.
    error.add_note("".join(traceback.format_exception(error)).rstrip())
    try:
        blob = pickle.dumps(error)
        _loads(blob)
    except Exception:  # noqa: BLE001
        replacement = ExecutorError(node, f"the error {type(error).__name__}", "it does not pickle")
        replacement.add_note("\n".join(error.__notes__))
        return pickle.dumps(replacement)
    return blob


def _not_picklable(node: str, what: str, error: Exception) -> ExecutorError:
    failure = ExecutorError(node, what, f"{type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
