"""What the dispatcher reads: a source is a list of records in the storage, with the owner that serves them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from contextvars import Context
from typing import Any, Self

from stepwell.codec import encode_namespace
from stepwell.dispatch.polling import Pauses
from stepwell.record import Address
from stepwell.storage import Storage

__all__ = ["QueueSource", "RecordSource", "TaskLimit"]

#: The number of records after which a queue adapts its spread, and the largest spread.
SAMPLE, LARGEST_SPREAD = 16, 16
#: The most records that one read of a queue asks for.
LONGEST_READ = 10_000


class TaskLimit:
    """How many tasks may run at once. Sources may share it."""

    __slots__ = ("limit", "taken")

    def __init__(self, limit: int) -> None:
        self.limit: int = limit
        self.taken: int = 0

    @property
    def free(self) -> int:
        """How many more tasks may start."""
        return self.limit - self.taken


class RecordSource:
    """Records of one namespace that one owner serves.

    ``names``: the flows or queues that it reads. ``limits``: the first one is shared with the sources that it takes
    turns with. ``pauses``: the first and the longest pause in seconds before a record that could not be served is tried
    again. ``what``: names its tasks. ``topics``: notices after which it is read at once.
    """

    def __init__(
        self,
        storage: Storage,
        namespace: str,
        *,
        limits: Sequence[TaskLimit],
        pauses: tuple[float, float],
        what: str,
        topics: Sequence[str] = (),
    ) -> None:
        self.storage: Storage = storage
        self.name: str = namespace
        self.namespace: str = encode_namespace(namespace, storage.limits)
        self.limits: tuple[TaskLimit, ...] = tuple(limits)
        self.pauses: Pauses = Pauses(*pauses)
        self.what: str = what
        self.topics: tuple[str, ...] = tuple(topics)
        #: Whether not to serve an address now.
        self.skip: Callable[[Address], bool] | None = None
        #: Whether there may be records to serve.
        self.hot: bool = False
        #: The context variables of its tasks: those of the task that has started it.
        self.context: Context = Context()
        self._wakes = 0

    def wake(self) -> None:
        """Read it as soon as a task may start."""
        self.hot = True
        self._wakes += 1

    @property
    def free_at(self) -> float:
        """The loop time before which no record may start."""
        return 0.0

    @property
    def group(self) -> Hashable:
        """Sources with the same group are read together while they rest."""
        raise NotImplementedError

    async def any_fresh(self, group: Sequence[Any], busy: Callable[[Address], bool]) -> bool:
        """Read all sources of the group together, and return whether any of them has a record to serve."""
        raise NotImplementedError

    def room(self) -> int:
        """Return how many records may start now."""
        if self.free_at > asyncio.get_running_loop().time():
            return 0
        return min(each.free for each in self.limits)

    def ignores(self, address: Address) -> bool:
        """Return whether not to serve an address now."""
        return address in self.pauses or (self.skip is not None and self.skip(address))

    def _rest(self, wakes: int) -> None:
        """Stop reading until the next tick, unless a notice has arrived since there were so many."""
        if self._wakes == wakes:
            self.hot = False

    async def find(self, count: int, busy: Callable[[Address], bool]) -> list[Address]:
        """Return up to ``count`` records to serve that are not busy. If there are no more, the source rests."""
        raise NotImplementedError

    async def permit(self, found: list[Address]) -> list[Address]:
        """Return those of the found records that may start now."""
        return found

    async def serve(self, address: Address) -> bool:
        """Serve a record, and return whether it was started. Pause its address if it is to be tried again later."""
        raise NotImplementedError

    def ended(self, address: Address, *, served: bool) -> None:
        """Called after the task of an address."""

    def tried(self, *, won: bool) -> None:
        """Count a record that this process has taken, or that another one has taken first."""

    async def close(self) -> None:
        """Called when the source is not read any more."""


class QueueSource(RecordSource):
    """The records in some queues of a namespace, in their order."""

    def __init__(self, storage: Storage, namespace: str, queues: Sequence[str], **options: object) -> None:
        super().__init__(storage, namespace, **options)  # type: ignore[arg-type]
        self.queues: Sequence[str] = queues
        #: How many times as many records as needed are read, to choose from them at random.
        self.spread: int = 1
        self._won = self._lost = 0

    def tried(self, *, won: bool) -> None:
        """Count a record that this process has taken, or that another one has taken first.

        Processes that take the first records at the same time take the same ones. Each of them then chooses from more
        records than it needs. A process that is alone takes them in their order.
        """
        if won:
            self._won += 1
        else:
            self._lost += 1
        if self._won + self._lost >= SAMPLE:
            if self._lost > self._won / 8:
                self.spread = min(2 * self.spread, LARGEST_SPREAD)
            elif self._lost < self._won / 50:
                self.spread = max(self.spread // 2, 1)
            self._won = self._lost = 0

    @property
    def group(self) -> Hashable:
        """The queues of a namespace."""
        return QueueSource, self.namespace

    async def any_fresh(self, group: Sequence[Self], busy: Callable[[Address], bool]) -> bool:
        """Read the queues of the group together."""
        names = [name for source in group for name in source.queues]
        fresh, _ = await self._first(
            names, 1, lambda address: busy(address) or all(source.ignores(address) for source in group)
        )
        return bool(fresh)

    async def find(self, count: int, busy: Callable[[Address], bool]) -> list[Address]:
        """Return the first records that are not busy, or some of the first ones."""
        wakes = self._wakes
        fresh, more = await self._first(
            self.queues, count * self.spread, lambda address: busy(address) or self.ignores(address)
        )
        if not fresh or not (more or len(fresh) > count):
            self._rest(wakes)
        if self.spread > 1 and len(fresh) > count:
            # Adjacent ones: a batch of claims waits for another one if they have a single record in common.
            first = self.storage.rng.randint(0, min(len(fresh), count * self.spread) - count)
            return fresh[first : first + count]
        return fresh[:count]

    async def _first(
        self, names: Sequence[str], count: int, ignores: Callable[[Address], bool]
    ) -> tuple[list[Address], bool]:
        """Return about ``count`` first records of these queues that are not ignored, and whether there are more."""
        limit = count + self.limits[0].taken + len(self.pauses)
        while True:
            found = await self.storage.queued(self.namespace, names, limit=limit)
            fresh = [address for address in found if not ignores(address)]
            if fresh or len(found) < limit or limit >= LONGEST_READ:
                return fresh, len(found) >= limit
            limit = min(4 * limit, LONGEST_READ)
