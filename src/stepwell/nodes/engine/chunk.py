"""Items that run outside the event loop: in threads or in any executor, several to a hop."""

from __future__ import annotations

import asyncio
import pickle
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor
from types import CoroutineType
from typing import TYPE_CHECKING, Any, NamedTuple

from stepwell.errors import ExecutorError, NodeTimeout
from stepwell.nodes.engine.attempts import attempt
from stepwell.nodes.engine.position import Cursor, Step, current, enter, leave
from stepwell.nodes.engine.thread_pool import ThreadPool
from stepwell.nodes.engine.threads import ExecutorFailed, in_thread, result_of, settled, wait_for

if TYPE_CHECKING:
    from stepwell.nodes.engine.items import BatchRun
    from stepwell.nodes.engine.plan import Stage

__all__ = ["Chunks"]

#: Items, each with its place in the batch.
Pairs = list[tuple[int, Any]]

#: A chunk stops taking further items after so many seconds: long items stay evenly spread.
_BUDGET = 0.02
#: A chunk grows while chunks are quick, so that a hop is paid once for many short items.
_LARGEST = 1024


class Outcome(NamedTuple):
    """How one item of a chunk ended. A chunk ends with its first failed item."""

    ok: bool
    value: Any


def _raise_failure(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        if not outcome.ok:
            raise outcome.value


class Chunks:
    """Sends the items of one batch to a pool in chunks."""

    def __init__(self, stage: Stage, node: Any, executor: Executor | ThreadPool | None) -> None:
        self._stage = stage
        self._node = node
        self._executor = executor
        #: Threads share memory with us; everything else gets bytes.
        self._remote = executor is not None and not isinstance(executor, ThreadPoolExecutor | ThreadPool)
        self._blob: bytes | None = None
        self._broken = False

    async def work(self, batch: BatchRun, cursor: Cursor) -> None:
        """Be one worker of the batch: at most one chunk under way at a time."""
        try:
            await self._work(batch, cursor)
        except ExecutorFailed as failure:
            if batch.fatal is None:
                batch.fatal = failure.error
                batch.fatal.add_note(
                    f"the executor of batch {self._stage.path!r} failed; no item is marked as failed by this. "
                    "Give the node another executor; a durable run has kept its results and can be resumed"
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
            outcomes = await self._gated(batch, cursor, chunk)
            if outcomes is None:
                continue
            took = time.perf_counter() - began
            for (index, item), (ok, value) in zip(chunk, outcomes, strict=False):
                if ok and type(value) is not CoroutineType:
                    batch.succeed(index, value)
                    continue
                cursor.item = index
                await batch.settle(cursor, item, self._again(batch, cursor, item, ok, value))
            pending.extendleft(reversed(chunk[len(outcomes) :]))
            if self._stage.policy.timeout is not None:
                # The timeout of each item is measured from here, so each gets a hop of its own.
                continue
            if took < _BUDGET / 2:
                size = min(size * 2, _LARGEST)
            elif took > _BUDGET:
                size = max(1, len(outcomes) // 2)

    def _fair_share(self, batch: BatchRun) -> int:
        """The largest chunk that neither waits for items to come nor leaves other workers without any."""
        if batch.streaming:
            return 1
        largest = batch.largest_chunk or _LARGEST
        left = batch.left
        if left is None or batch.settings.concurrency is None:
            return largest
        return min(largest, max(1, left // batch.settings.concurrency))

    async def _again(self, batch: BatchRun, cursor: Cursor, item: Any, ok: bool, value: Any) -> Any:
        """Give an item the attempts that it has left; the first one was made in the chunk."""
        if ok:
            return await value
        if not isinstance(value, Exception):
            raise value
        if batch.limiter is None:
            return await attempt(self._stage, cursor, self._node, item, call=self._call, failed=value)
        async with batch.limiter:
            return await attempt(self._stage, cursor, self._node, item, call=self._call, failed=value)

    async def _call(self, stage: Stage, cursor: Cursor, node: Any, item: Any) -> Any:
        assert cursor.item is not None
        (outcome,) = await self._send(cursor, [(cursor.item, item)], _raise_failure)
        _raise_failure([outcome])
        return await outcome.value if type(outcome.value) is CoroutineType else outcome.value

    async def _gated(self, batch: BatchRun, cursor: Cursor, chunk: Pairs) -> list[Outcome] | None:
        """Send a chunk when the limiter lets it pass; ``None`` when the chunk has failed as a whole."""
        cursor.item, cursor.attempt = chunk[0][0], 1

        def salvage(outcomes: list[Outcome]) -> None:
            # A sibling has ended the batch while this chunk ran: its error must not vanish.
            for (index, item), (ok, value) in zip(chunk, outcomes, strict=False):
                if not ok and isinstance(value, Exception):
                    batch.record(index, item, value)

        try:
            if batch.limiter is None:
                return await self._send(cursor, chunk, salvage)
            async with batch.limiter:
                return await self._send(cursor, chunk, salvage)
        except NodeTimeout as error:
            return [Outcome(False, error)]
        except Exception as error:  # noqa: BLE001 - it becomes the error of its items
            # The node cannot travel to the executor: no item of the chunk has a result or another attempt.
            for index, item in chunk:
                batch.fail(index, item, error)
            return None

    async def _send(self, cursor: Cursor, chunk: Pairs, salvage: Callable[[list[Outcome]], None]) -> list[Outcome]:
        stage = self._stage
        if not self._remote:
            outcomes: list[Outcome] = await in_thread(
                stage.path,
                cursor,
                *(run_here, stage.exec, self._node, chunk),
                timeout=stage.policy.timeout,
                pool=self._executor,
                salvage=salvage,
            )
            return outcomes
        return await self._send_away(cursor, chunk, salvage)

    async def _send_away(self, cursor: Cursor, chunk: Pairs, salvage: Callable[[list[Outcome]], None]) -> list[Outcome]:
        assert isinstance(self._executor, Executor)
        stage = self._stage
        blobs: list[tuple[int, bytes]] = []
        refused: list[Outcome] = []
        for index, item in chunk:
            try:
                blobs.append((index, _dumps(item)))
            except Exception as error:  # noqa: BLE001 - pickling raises whatever the item's class raises
                refused.append(Outcome(False, _untravelled(stage.path, f"item {index}", error)))
                break
        if not blobs:
            return refused
        if self._blob is None:
            self._blob = self._pickled_node()
        try:
            job = self._executor.submit(run_away, self._blob, stage.node._hooks.exec, cursor.step(), blobs)
        except Exception as error:
            raise ExecutorFailed(error) from error
        future = asyncio.wrap_future(job)
        try:
            await wait_for(future)
        except asyncio.CancelledError:
            if not self._broken:
                # A broken pool ends all its futures, and its thread fails on one that is cancelled meanwhile.
                job.cancel()
            await settled(future)
            if not future.cancelled() and future.exception() is None:
                salvage(self._unpacked(future.result()))
            raise
        try:
            outcomes = self._unpacked(result_of(future, stage.path))
        except BrokenExecutor as error:
            self._broken = True
            raise ExecutorFailed(error) from error
        complete = len(outcomes) == len(blobs) and all(ok for ok, _ in outcomes)
        return [*outcomes, *refused] if complete else outcomes

    def _pickled_node(self) -> bytes:
        stage = self._stage
        bare = stage.cls.__new__(stage.cls)
        # Without the rest of the graph, and without the executor, which cannot travel.
        bare.__dict__ = {**self._node.__dict__, "successors": {}, "executor": None}
        try:
            return _dumps(bare)
        except Exception as error:
            raise _untravelled(stage.path, "the node itself", error) from error

    def _unpacked(self, outcomes: list[tuple[bool, bytes]]) -> list[Outcome]:
        unpacked = []
        for ok, blob in outcomes:
            try:
                unpacked.append(Outcome(ok, _loads(blob)))
            except Exception as error:  # noqa: BLE001 - unpickling raises whatever the value's class raises
                unpacked.append(Outcome(False, _untravelled(self._stage.path, "a result", error)))
                break
        return unpacked


def _dumps(value: Any) -> bytes:
    """A value on its way to another process of this run, as executors send theirs; never to a storage."""
    return pickle.dumps(value)


def _loads(blob: bytes) -> Any:
    """A value that :func:`_dumps` sent to or from an executor. Nothing stored ever gets here."""
    return pickle.loads(blob)  # noqa: S301 - made by this very run, a moment ago


def run_here(exec_: Callable[[Any, Any], Any], node: Any, chunk: Pairs) -> list[Outcome]:
    """Run a chunk in this thread."""
    cursor = current()
    assert cursor is not None
    outcomes: list[Outcome] = []
    until = time.perf_counter() + _BUDGET
    for index, item in chunk:
        cursor.item = index
        try:
            outcomes.append(Outcome(True, exec_(node, item)))
        except BaseException as error:  # noqa: BLE001 - it is raised where the chunk is awaited
            outcomes.append(Outcome(False, error))
            break
        if time.perf_counter() > until:
            break
    return outcomes


class _Elsewhere(NamedTuple):
    flow_id: str


def run_away(node_blob: bytes, exec_name: str, step: Step, blobs: list[tuple[int, bytes]]) -> list[tuple[bool, bytes]]:
    """Run a chunk in an executor's worker, which may be another process."""
    node = _loads(node_blob)
    cursor = Cursor(
        _Elsewhere(step.flow_id),  # type: ignore[arg-type]
        step.node,
        step.visit,
        None,
        step.attempt,
    )
    token = enter(cursor)
    outcomes: list[tuple[bool, bytes]] = []
    until = time.perf_counter() + _BUDGET
    try:
        for index, blob in blobs:
            cursor.item = index
            try:
                result = getattr(node, exec_name)(_loads(blob))
            except Exception as error:  # noqa: BLE001 - it is raised where the chunk is awaited
                outcomes.append((False, _packed(error, step.node)))
                break
            try:
                outcomes.append((True, _dumps(result)))
            except Exception as error:  # noqa: BLE001 - pickling raises whatever the result's class raises
                failure = _untravelled(step.node, f"the result of item {index}", error)
                outcomes.append((False, _packed(failure, step.node)))
                break
            if time.perf_counter() > until:
                break
    finally:
        leave(token)
    return outcomes


def _packed(error: Exception, node: str) -> bytes:
    # A traceback does not travel, so its text does.
    error.add_note("".join(traceback.format_exception(error)).rstrip())
    try:
        blob = _dumps(error)
        _loads(blob)
    except Exception:  # noqa: BLE001
        stand_in = ExecutorError(node, f"the error {type(error).__name__}", "it does not pickle")
        stand_in.add_note("\n".join(error.__notes__))
        return _dumps(stand_in)
    return blob


def _untravelled(node: str, what: str, error: Exception) -> ExecutorError:
    failure = ExecutorError(node, what, f"{type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
