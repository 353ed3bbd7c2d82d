"""The lanes of a Redis Cluster: one for each node, and one for each hash tag that is in trouble."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping
from typing import Any, NamedTuple, TypeAlias

from stepwell.errors import StorageUnavailable
from stepwell.storage.operations import Apply, Get, Operation, Result
from stepwell.storage.redis.cluster import Cluster
from stepwell.storage.redis.wire import TAGS, tag_of
from stepwell.storage.transport.batch import Batch
from stepwell.storage.transport.lane import Entry, Lane

__all__ = ["CONFIRM", "REST", "WRITES", "ClusterLanes", "whole"]

#: Lanes: for writes, for other operations, and for confirmations by replicas. Each has its own connection.
WRITES, REST, CONFIRM = "writes", "rest", "confirm"

_Run: TypeAlias = Callable[[Batch], Awaitable[list[Result]]]


class ClusterLanes:
    """Which lane an operation takes: that of its node, or that of its hash tag while the tag is in trouble.

    If some calls of a batch have no results, because they were refused or not answered, their hash tags get lanes of
    their own, which retry them without delaying the rest. Their later operations follow there until that lane is idle.

    ``lanes``: returns all lanes by kind and by node or hash tag. ``waits``: writes wait for replicas.
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
        #: The node whose lane has the writes of each hash tag; the tag itself for its own lane.
        self._write_nodes: list[Hashable] = [None] * TAGS
        #: Hash tags whose other operations are in their own lane.
        self._parked: set[int] = set()

    def reset(self) -> None:
        """Begin anew, without lanes."""
        self._ids.clear()
        self._parked.clear()

    def make(self, name: tuple[str, Hashable], run: _Run) -> Lane:
        """Return a new lane."""
        kind, node = name
        options: dict[str, Any] = {
            "ids": lambda: self._ids.setdefault(kind, self._make_id()),
            "patience": self._patience,
            "numbers": self._numbers,
        }
        if kind == CONFIRM:
            return Lane(run, **options)
        if isinstance(node, int):
            return _TagLane(run, self, **options)
        return _NodeLane(run, self, kind, **options)

    def lane_of(self, operation: Operation) -> tuple[str, Hashable]:
        """Return the name of the lane of an operation."""
        tag = tag_of(operation.address)
        node: Hashable = self._cluster.owners[tag]
        # Claims share the lane and so the round trips of writes. If writes wait for replicas, claims would wait too,
        # and reads of parts may be large.
        kind = type(operation)
        if kind is not Apply and (self._waits or (kind is Get and operation.parts)):  # type: ignore[union-attr]
            if self._parked and tag in self._parked:
                if not self._lanes()[REST, tag].idle:
                    return REST, tag
                self._parked.discard(tag)
            return REST, node
        before = self._write_nodes[tag]
        if node is not before and node != before:
            # Writes to one address keep their order, so they stay in their lane until it has sent what it is sending.
            lane = self._lanes().get((WRITES, before))
            if isinstance(lane, _ClusterLane) and not lane.idle:
                lane.hands_over = True
                return WRITES, before
            self._write_nodes[tag] = node
        return WRITES, node

    def park(self, kind: str, lane: _ClusterLane, remainders: dict[int, _Remainder]) -> None:
        """Pass on the operations of hash tags in trouble, and those that wait, to lanes of their own."""
        for tag, remainder in remainders.items():
            if kind == WRITES:
                self._write_nodes[tag] = tag
            else:
                self._parked.add(tag)
            own = self._lane((kind, tag))
            assert isinstance(own, _TagLane)
            own.adopt(remainder)
            for entry in lane.pull(tag):
                own.push(entry)

    def hand_over(self, lane: _ClusterLane) -> None:
        """Pass on the queued writes of a lane to the lanes of the nodes that have their hash tags now."""
        for entry in lane.pull():
            tag = tag_of(entry[0].address)
            node = self._write_nodes[tag] = self._cluster.node_of(entry[0].address)
            self._lane((WRITES, node)).push(entry)

    def _lane(self, name: tuple[str, Hashable]) -> _ClusterLane:
        lane = self._lanes().get(name) or self._new_lane(name)
        assert isinstance(lane, _ClusterLane)
        return lane


class _Remainder(NamedTuple):
    """The operations of one hash tag that have no results yet, while the rest of their batch has."""

    entries: list[Entry]
    batch: Batch
    #: When to stop retrying them.
    deadline: float
    #: Whether the server may have received them.
    sent: bool


class _ClusterLane(Lane):
    """A lane that takes over operations of other lanes, and passes on its own."""

    def __init__(self, run: _Run, lanes: ClusterLanes, **options: Any) -> None:
        super().__init__(run, **options)
        self._cluster_lanes = lanes
        #: Some of its hash tags are on other nodes: what is queued goes there before the next batch.
        self.hands_over: bool = False

    def push(self, entry: Entry) -> None:
        """Queue an operation of another lane."""
        self._queue.append(entry)
        if self._runner is None:
            self._start()

    def pull(self, tag: int | None = None) -> list[Entry]:
        """Remove the operations of a hash tag, or all, from the queue, in their order, and return them."""
        pulled: list[Entry] = []
        kept: list[Entry] = []
        for entry in self._queue:
            (pulled if tag is None or tag_of(entry[0].address) == tag else kept).append(entry)
        self._queue.clear()
        self._queue.extend(kept)
        return pulled

    def _take(self) -> list[Entry]:
        if self.hands_over:
            self.hands_over = False
            self._cluster_lanes.hand_over(self)
        return super()._take()


class _NodeLane(_ClusterLane):
    """The operations for one node of a Cluster. Those without a result are passed on."""

    def __init__(self, run: _Run, lanes: ClusterLanes, kind: str, **options: Any) -> None:
        super().__init__(run, lanes, **options)
        self._kind = kind

    def _deliver(self, entries: list[Entry], results: list[Result], batch: Batch, deadline: float) -> None:
        remainders: dict[int, _Remainder] = {}
        settled: list[tuple[Entry, Result]] = []
        for entry, result in zip(entries, results, strict=True):
            if not isinstance(result, StorageUnavailable):
                settled.append((entry, result))
                continue
            tag = tag_of(entry[0].address)
            others = remainders.get(tag) or _Remainder([], batch, deadline, sent=False)
            remainders[tag] = others._replace(entries=[*others.entries, entry], sent=others.sent or result.sent)
        if not remainders:
            super()._deliver(entries, results, batch, deadline)
            return
        super()._deliver([entry for entry, _ in settled], [result for _, result in settled], batch, deadline)
        entries[:] = [entry for entry, _ in settled]
        self._cluster_lanes.park(self._kind, self, remainders)


class _TagLane(_ClusterLane):
    """The operations of one hash tag that was refused or did not answer."""

    def __init__(self, run: _Run, lanes: ClusterLanes, **options: Any) -> None:
        async def run_whole(batch: Batch) -> list[Result]:
            resent = self._resent
            if resent is not None and resent.sent and self._clock() >= resent.deadline:
                raise StorageUnavailable("it was not answered in time", final=True)
            return whole(await run(batch))

        super().__init__(run_whole, lanes, **options)
        #: They are sent again first, under their old numbers.
        self._remainders: deque[_Remainder] = deque()
        self._resent: _Remainder | None = None

    def adopt(self, remainder: _Remainder) -> None:
        """Send operations again, before all that are queued."""
        self._remainders.append(remainder)
        if self._runner is None:
            self._start()

    def _take(self) -> list[Entry]:
        self._resent = self._remainders.popleft() if self._remainders else None
        return super()._take() if self._resent is None else self._resent.entries

    def _write(self, group: list[Entry]) -> Coroutine[Any, Any, None]:
        if self._resent is None:
            return super()._write(group)
        _, batch, deadline, sent = self._resent
        part = Batch.of([operation for operation, _ in group], batch.lane, batch.number)
        return self._send(group, part, deadline, sent=sent)

    async def _drain(self) -> None:
        try:
            await super()._drain()
        finally:
            # These remain only if the event loop is shutting down.
            for remainder in self._remainders:
                for _, future in remainder.entries:
                    future.cancel()
            self._remainders.clear()


def whole(results: list[Result]) -> list[Result]:
    """Return the results of a batch that is retried as a whole, or raise the error of an operation without a result."""
    for outcome in results:
        if isinstance(outcome, StorageUnavailable):
            raise outcome
    return results
