"""Records in the memory of this process: for tests, and as the reference for other backends."""

from __future__ import annotations

import asyncio
import heapq
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Self

from stepwell.errors import InvalidOption, StepwellError
from stepwell.record import KEEP, Address, Head, Limits, Queue
from stepwell.storage.contract import Storage
from stepwell.storage.listing import ANY, Any_, Beside, Due, Page, Query, StateCount, Swept
from stepwell.storage.operations import Apply, Operation, Result, check_queue
from stepwell.storage.reference import Cell

__all__ = ["MemoryStorage"]


class MemoryStorage(Storage):
    """Keeps records until the process ends.

    Example::

        async with MemoryStorage() as storage:
            await storage.set_data("my_bot", (42, 42), {"name": "Alice"})
            assert await storage.get_data("my_bot", (42, 42)) == {"name": "Alice"}
    """

    shared = False
    _cell = Cell

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        clock: Callable[[], float] | None = None,
        ids: Callable[[], str] | None = None,
        sweep_every: float | None = 60.0,
    ) -> None:
        super().__init__(limits=limits, clock=clock, ids=ids, sweep_every=sweep_every)
        self._now: Callable[[], float] = clock or time.time
        self._cells: dict[Address, Cell] = {}
        #: Deadline and key of each record that has one, sorted, by namespace and flow.
        self._deadlines: dict[tuple[str, str | None], list[tuple[float, str]]] = {}
        #: Priority (negated), time and key of each queued record, sorted, by namespace and queue.
        self._queued: dict[tuple[str, str], list[tuple[int, float, str]]] = {}
        self._tagged: dict[tuple[str, str], set[Address]] = {}

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """Return a storage for ``memory://``."""
        scheme, _, rest = url.partition(":")
        if scheme.lower() == "memory" and rest not in ("", "//"):
            raise InvalidOption("memory:// takes no path or query; pass options to open_storage()")
        return cls(**options)

    def use_clock(self, clock: Callable[[], float]) -> None:
        """Use another clock from now on, for tests."""
        self.clock: Callable[[], float] | None = clock
        self._now = clock

    @property
    def location(self) -> str:
        return "memory"

    async def run(self, operations: Sequence[Operation]) -> list[Result]:
        return [self._do(operation) for operation in operations]

    async def perform(self, operation: Operation) -> Any:
        # No operation waits here, so there is nothing to batch.
        if self.loop is not asyncio.get_running_loop():
            await self.ensure_open()
        if type(operation) is Apply and operation.change.queue is not KEEP:
            check_queue(operation.change.queue)
        result = self._do(operation)
        if isinstance(result, StepwellError):
            raise result
        return result

    def _do(self, operation: Operation) -> Result:
        address = operation.address
        now = self._now()
        known = self._cells.get(address)
        cell = known or self._cell()
        tags, deadline, head, queue, queued_at = cell.tags, cell.deadline, cell.head, cell.queue, cell.queued_at
        result = cell.do(operation, now)
        if cell.tags is not tags:
            self._retag(address, tags, cell.tags)
        if not cell.alive and cell.removable(now):
            if known is not None:
                del self._cells[address]
                self._retag(address, cell.tags, ())
        elif known is None:
            self._cells[address] = cell
        if deadline != cell.deadline or (
            deadline is not None and (head and head.flow) != (cell.head and cell.head.flow)
        ):
            _move(
                self._deadlines,
                _deadline_entry(address, deadline, head),
                _deadline_entry(address, cell.deadline, cell.head),
            )
        if queue is not cell.queue or queued_at != cell.queued_at:
            _move(
                self._queued, _queue_entry(address, queue, queued_at), _queue_entry(address, cell.queue, cell.queued_at)
            )
        return result

    def _retag(self, address: Address, old: tuple[str, ...], new: tuple[str, ...]) -> None:
        for tag in old:
            tagged = self._tagged[address.namespace, tag]
            tagged.discard(address)
            if not tagged:
                del self._tagged[address.namespace, tag]
        for tag in new:
            self._tagged.setdefault((address.namespace, tag), set()).add(address)

    async def page(self, query: Query, after: Any, limit: int) -> Page:
        now = self._now()
        addresses = self._cells if query.tag is None else self._tagged.get((query.namespace, query.tag), ())
        matching = heapq.nsmallest(
            limit + 1,
            (
                address
                for address in addresses
                if (after is None or address > after) and _matches(query, address, self._cells[address], now)
            ),
        )
        records = [(address, self._cells[address].stored(parts=False)) for address in matching[:limit]]
        return Page(records, records[-1][0] if len(matching) > limit else None)

    def position(self, address: Address) -> Any:
        return address

    async def counts(self, *, oldest: bool = False) -> list[StateCount]:
        now = self._now()
        found: dict[tuple[str, str | None, str | None], list[float]] = {}
        for address, cell in self._cells.items():
            if cell.visible(now):
                head = cell.head
                at = address.namespace, head.flow if head else None, head.state if head else None
                found.setdefault(at, []).append(cell.written_at)
        return [StateCount(*at, len(times), min(times)) for at, times in found.items()]

    async def beside(self, address: Address) -> Beside:
        cell, now = self._cells.get(address) or Cell(), self._now()
        held = cell.leased(now)
        return Beside(
            cell.token if held else None,
            cell.leased_until - now if held else 0.0,
            cell.memo if cell.memo_until > now else None,
        )

    async def namespaces(self) -> list[str]:
        return sorted({address.namespace for address in self._cells})

    async def traces(self, namespace: str, tag: str, *, limit: int = 500) -> list[Address]:
        return sorted(self._tagged.get((namespace, tag), ()))[:limit]

    async def erase(self, *, only_if_quick: bool = False) -> bool:
        return True

    async def due(
        self,
        namespace: str,
        *,
        before: float | None = None,
        limit: int = 100,
        after: Due | None = None,
        flow: str | Any_ | Sequence[str] | None = ANY,
    ) -> list[Due]:
        now = self._now()
        last = now if before is None else before
        wanted = flow if isinstance(flow, Any_) else {flow} if flow is None or isinstance(flow, str) else set(flow)
        flows = [
            each for each in self._deadlines if each[0] == namespace and (isinstance(wanted, Any_) or each[1] in wanted)
        ]
        begin = None if after is None else (after.deadline, after.address.key)
        found: list[Due] = []
        for deadline, key in heapq.merge(*(_from(self._deadlines[each], begin) for each in flows)):
            if deadline > last or len(found) == limit:
                break
            address = Address(namespace, key)
            if self._cells[address].visible(now):
                found.append(Due(address, deadline))
        return found

    async def queued(self, namespace: str, name: str | Sequence[str], *, limit: int = 100) -> list[Address]:
        now = self._now()
        names = (name,) if isinstance(name, str) else dict.fromkeys(name)
        places = heapq.merge(*(self._queued.get((namespace, each), ()) for each in names))
        addresses = (Address(namespace, key) for *_, key in places)
        return list(islice((address for address in addresses if self._cells[address].visible(now)), limit))

    async def queues(self, namespace: str, *, prefix: str = "", after: str = "", limit: int = 100) -> list[str]:
        names = sorted(
            name
            for its_namespace, name in self._queued
            if its_namespace == namespace and name > after and name.startswith(prefix)
        )
        found: list[str] = []
        for name in names:
            if len(found) == limit:
                break
            if await self.queued(namespace, name, limit=1):
                found.append(name)
        return found

    async def sweep(self, limit: int = 1000) -> Swept:
        now = self._now()
        gone = list(islice((address for address, cell in self._cells.items() if cell.removable(now)), limit))
        expired: list[tuple[Address, str | None]] = []
        for address in gone:
            cell = self._cells[address]
            if cell.alive:
                expired.append((address, cell.head.text if cell.head else None))
            _move(self._deadlines, _deadline_entry(address, cell.deadline, cell.head), None)
            _move(self._queued, _queue_entry(address, cell.queue, cell.queued_at), None)
            if (left := cell.remains(now)) is not None:
                self._cells[address] = left
            else:
                del self._cells[address]
                self._retag(address, cell.tags, ())
        return Swept(expired, len(gone))


def _deadline_entry(address: Address, deadline: float | None, head: Head | None) -> tuple[Any, Any] | None:
    return None if deadline is None else ((address.namespace, head.flow if head else None), (deadline, address.key))


def _queue_entry(address: Address, queue: Queue | None, queued_at: float) -> tuple[Any, Any] | None:
    return None if queue is None else ((address.namespace, queue.name), (-queue.priority, queued_at, address.key))


def _move(index: dict[Any, list[Any]], old: tuple[Any, Any] | None, new: tuple[Any, Any] | None) -> None:
    """Replace an entry of an index of sorted lists."""
    if old is not None:
        group, entry = old
        entries = index[group]
        del entries[bisect_left(entries, entry)]
        if not entries:
            del index[group]
    if new is not None:
        group, entry = new
        insort(index.setdefault(group, []), entry)


def _from(entries: list[Any], after: Any) -> Iterator[Any]:
    """Yield the entries greater than ``after``."""
    return islice(entries, 0 if after is None else bisect_right(entries, after), None)


def _matches(query: Query, address: Address, cell: Cell, now: float) -> bool:
    flow, state = (cell.head.flow, cell.head.state) if cell.head else (None, None)
    return (
        address.namespace == query.namespace
        and cell.visible(now)
        and (isinstance(query.flow, Any_) or flow == query.flow)
        and (isinstance(query.state, Any_) or state == query.state)
    )
