"""The lanes of a Redis Cluster, one for each node. A hash tag in trouble does not delay the others of its node."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, Final, TypeAlias

from stepwell.errors import StorageUnavailable
from stepwell.storage.operations import Apply, Get, Operation, Result
from stepwell.storage.redis.batches import whole
from stepwell.storage.redis.cluster import Cluster
from stepwell.storage.redis.wire import TAGS, tag_of
from stepwell.storage.transport.batch import Batch
from stepwell.storage.transport.lane import Entry, Lane

__all__ = ["CONFIRM", "REST", "WRITES", "ClusterLanes"]

#: Lanes: for writes, for other operations, and for confirmations by replicas. Each has its own connection.
WRITES: Final = "writes"
REST: Final = "rest"
CONFIRM: Final = "confirm"

_Run: TypeAlias = Callable[[Batch], Awaitable[list[Result]]]


class ClusterLanes:
    """Which lane an operation takes: that of the node that has its hash tag.

    ``lanes``: returns all lanes by kind and node. ``waits``: writes wait for replicas.
    """

    def __init__(
        self,
        cluster: Cluster,
        lanes: Callable[[], Mapping[Hashable, Lane]],
        new_lane: Callable[[tuple[str, Hashable]], Lane],
        ids: Callable[[], str],
        *,
        patience: float,
        waits: bool,
    ) -> None:
        self._cluster = cluster
        self._lanes = lanes
        self._new_lane = new_lane
        self._make_id = ids
        self._patience = patience
        self._waits = waits
        # Lanes of one kind share an id and their numbers, so that the journal and the fence of a hash tag hold for all
        # lanes that it uses one after the other. Each opening makes new ids, because forked processes must not share
        # them.
        self._ids: dict[str, str] = {}
        self._numbers = itertools.count(1)
        #: The node whose lane has the operations of each hash tag.
        self._nodes: dict[str, list[Hashable]] = {WRITES: [None] * TAGS, REST: [None] * TAGS}

    def reset(self) -> None:
        """Begin anew, without lanes."""
        self._ids.clear()

    def make(self, name: tuple[str, Hashable], run: _Run) -> Lane:
        """Return a new lane."""
        kind, _ = name
        options: dict[str, Any] = {
            "ids": lambda: self._ids.setdefault(kind, self._make_id()),
            "patience": self._patience,
            "numbers": self._numbers,
        }
        return Lane(run, **options) if kind == CONFIRM else NodeLane(run, self, kind, **options)

    def lane_of(self, operation: Operation) -> tuple[str, Hashable]:
        """Return the name of the lane of an operation."""
        # Claims share the lane and so the round trips of writes. If writes wait for replicas, claims would wait too,
        # and reads of parts may be large.
        type_ = type(operation)
        alone = type_ is not Apply and (self._waits or (type_ is Get and operation.parts))  # type: ignore[union-attr]
        kind = REST if alone else WRITES
        tag, nodes = tag_of(operation.address), self._nodes[kind]
        before, node = nodes[tag], self._cluster.owners[tag]
        if node is not before and node != before:
            # Operations on one address keep their order, so they stay in their lane while it sends a batch.
            lane = self._lanes().get((kind, before))
            if isinstance(lane, NodeLane) and not lane.idle:
                lane.hands_over = True
                return kind, before
            nodes[tag] = node
        return kind, node

    def route(self, kind: str, entry: Entry) -> None:
        """Queue an operation that a lane passes on, in the lane of the node that has its hash tag now."""
        tag = tag_of(entry[0].address)
        node = self._nodes[kind][tag] = self._cluster.owners[tag]
        lane = self._lanes().get((kind, node)) or self._new_lane((kind, node))
        assert isinstance(lane, NodeLane)
        lane.push(entry)


class _Part(Batch):
    """The operations of one hash tag of a batch, which are retried as a whole."""


class NodeLane(Lane):
    """The operations for one node of a Cluster.

    If some operations of a batch have no results, because their calls were refused or not answered, they are sent again
    beside the lane, under their old number. Later operations of these hash tags wait for that.
    """

    def __init__(self, run: _Run, lanes: ClusterLanes, kind: str, **options: Any) -> None:
        async def run_part(batch: Batch) -> list[Result]:
            results = await run(batch)
            return whole(results) if isinstance(batch, _Part) else results

        super().__init__(run_part, **options)
        self._cluster_lanes = lanes
        self._kind = kind
        #: Some of its hash tags are on other nodes: what is queued goes there before the next batch.
        self.hands_over: bool = False
        #: The operations that wait, by the hash tags whose earlier ones are sent again, and the tasks that send these.
        self._held: dict[int, list[Entry]] = {}
        self._resending: set[asyncio.Task[None]] = set()

    @property
    def idle(self) -> bool:
        """Whether no operation is queued or being sent, or has to be sent again."""
        return super().idle and not self._held

    def push(self, entry: Entry) -> None:
        """Queue an operation of another lane."""
        self._queue.append(entry)
        if self._runner is None:
            self._start()

    async def flush(self) -> None:
        """Send all operations."""
        await super().flush()
        while self._resending:
            await asyncio.wait(self._resending)
            await super().flush()

    def _take(self) -> list[Entry]:
        if self._held or self.hands_over:
            self.hands_over = False
            entries = [*self._queue]
            self._queue.clear()
            for entry in entries:
                held = self._held.get(tag_of(entry[0].address))
                if held is None:
                    self._cluster_lanes.route(self._kind, entry)
                else:
                    held.append(entry)
        return super()._take()

    def _deliver(self, entries: list[Entry], results: list[Result], batch: Batch, deadline: float) -> None:
        lost: dict[int, list[tuple[Entry, StorageUnavailable]]] = {}
        settled: list[tuple[Entry, Result]] = []
        for entry, result in zip(entries, results, strict=True):
            if isinstance(result, StorageUnavailable):
                lost.setdefault(tag_of(entry[0].address), []).append((entry, result))
            else:
                settled.append((entry, result))
        if lost:
            entries[:] = [entry for entry, _ in settled]
            results = [result for _, result in settled]
        super()._deliver(entries, results, batch, deadline)
        for tag, some in lost.items():
            self._held[tag] = []
            part = _Part.of([entry[0] for entry, _ in some], batch.lane, batch.number)
            sending = self._send_again(tag, [entry for entry, _ in some], part, deadline, some[0][1])
            task = asyncio.get_running_loop().create_task(sending, name="stepwell-lane-part")
            self._resending.add(task)
            task.add_done_callback(self._resending.discard)

    async def _send_again(
        self, tag: int, entries: list[Entry], part: Batch, deadline: float, problem: StorageUnavailable
    ) -> None:
        try:
            if problem.sent and self._clock() >= deadline:
                self._fail(entries, problem)
            else:
                await self._send(entries, part, deadline, sent=problem.sent)
        except BaseException:
            # The event loop is shutting down.
            for _, future in (*entries, *self._held[tag]):
                future.cancel()
            raise
        finally:
            for entry in self._held.pop(tag):
                self._cluster_lanes.route(self._kind, entry)
            if self._queue and self._runner is None:
                self._start()
