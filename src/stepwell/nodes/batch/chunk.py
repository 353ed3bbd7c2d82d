"""Chunks of items that run outside the event loop, in threads or in an executor."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor
from types import CoroutineType
from typing import TYPE_CHECKING, Any, NamedTuple

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
from stepwell.nodes.walk.execution import Cursor, current
from stepwell.nodes.walk.thread_pool import ThreadPool
from stepwell.nodes.walk.threads import ExecutorFailed, in_thread, result_of, settled

if TYPE_CHECKING:
    from stepwell.nodes.graph.plan import Stage

__all__ = ["LARGEST", "Chunks", "Outcome"]

#: Items with their indexes.
Pairs = list[tuple[int, Any]]

#: The most items in a chunk. Chunks grow while they are quick, so that many short items share one thread switch.
LARGEST = 1024


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

    async def call(self, stage: Stage, cursor: Cursor, node: Any, item: Any) -> Any:
        """Run one item as a chunk of its own, and return its result or raise its error."""
        assert cursor.item is not None
        outcomes: list[Outcome] = []
        while not outcomes:
            outcomes = await self.send(cursor, [(cursor.item, item)], _raise_failure)
        _raise_failure(outcomes)
        (outcome,) = outcomes
        return await outcome.value if type(outcome.value) is CoroutineType else outcome.value

    async def send(self, cursor: Cursor, chunk: Pairs, late: Callable[[list[Outcome]], None]) -> list[Outcome]:
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
        cursor.item, cursor.effects = index, None
        try:
            outcomes.append(Outcome(True, exec_(node, item)))
        except BaseException as error:  # noqa: BLE001 - raised where the chunk is awaited
            outcomes.append(Outcome(False, error))
            break
        if time.perf_counter() > until:
            break
    return outcomes
