"""Records in the memory of this process: for tests, and as the reference for other backends."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Self

from stepwell.errors import InvalidOption, StepwellError
from stepwell.record import Address, Limits
from stepwell.storage.contract import Storage
from stepwell.storage.listing import Any_, Due, Page, Query, Swept
from stepwell.storage.operations import Operation, Result
from stepwell.storage.reference import Cell

__all__ = ["MemoryStorage"]


class MemoryStorage(Storage):
    """Keeps records until the process ends."""

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
        #: Addresses with a deadline, so that a poll need not search all cells.
        self._deadlines: set[Address] = set()
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
        if self._loop is not asyncio.get_running_loop():
            await self.ensure_open()
        result = self._do(operation)
        if isinstance(result, StepwellError):
            raise result
        return result

    def _do(self, operation: Operation) -> Result:
        address = operation.address
        now = self._now()
        known = self._cells.get(address)
        cell = known or self._cell()
        tags = cell.tags
        result = cell.do(operation, now)
        if cell.tags is not tags:
            self._retag(address, tags, cell.tags)
        if not cell.alive and cell.removable(now):
            if known is not None:
                del self._cells[address]
                self._retag(address, cell.tags, ())
        elif known is None:
            self._cells[address] = cell
        if cell.deadline is not None:
            self._deadlines.add(address)
        elif self._deadlines:
            self._deadlines.discard(address)
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

    async def namespaces(self) -> list[str]:
        return sorted({address.namespace for address in self._cells})

    async def traces(self, namespace: str, tag: str, *, limit: int = 500) -> list[Address]:
        return sorted(self._tagged.get((namespace, tag), ()))[:limit]

    async def erase(self, *, only_if_quick: bool = False) -> bool:
        return True

    async def due(
        self, namespace: str, *, before: float | None = None, limit: int = 100, after: Due | None = None
    ) -> list[Due]:
        now = self._now()
        limit_time = now if before is None else before
        found = []
        for address in self._deadlines:
            cell = self._cells[address]
            if address.namespace == namespace and cell.visible(now) and cell.deadline is not None:
                due = Due(address, cell.deadline)
                if cell.deadline <= limit_time and (after is None or _order(due) > _order(after)):
                    found.append(due)
        return sorted(found, key=_order)[:limit]

    async def sweep(self, limit: int = 1000) -> Swept:
        now = self._now()
        gone = list(islice((address for address, cell in self._cells.items() if cell.removable(now)), limit))
        expired: list[tuple[Address, str | None]] = []
        for address in gone:
            cell = self._cells[address]
            if cell.alive:
                expired.append((address, cell.head.text if cell.head else None))
            self._deadlines.discard(address)
            if (left := cell.remains(now)) is not None:
                self._cells[address] = left
            else:
                del self._cells[address]
                self._retag(address, cell.tags, ())
        return Swept(expired, len(gone))


def _order(due: Due) -> tuple[float, Address]:
    return due.deadline, due.address


def _matches(query: Query, address: Address, cell: Cell, now: float) -> bool:
    flow, state = (cell.head.flow, cell.head.state) if cell.head else (None, None)
    return (
        address.namespace == query.namespace
        and cell.visible(now)
        and (isinstance(query.flow, Any_) or flow == query.flow)
        and (isinstance(query.state, Any_) or state == query.state)
    )
