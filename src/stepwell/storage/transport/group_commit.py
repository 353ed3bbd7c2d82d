"""Group commit: items that arrive while a group is being written form the next group."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

__all__ = ["GroupCommit"]

T = TypeVar("T")
R = TypeVar("R")


class GroupCommit(Generic[T, R]):
    """Writes items in their order, in groups, one group at a time.

    A single item is written at once; while it is written, others gather. Each waiter gets the result of its item, or
    the error of its group. Items whose waiters were cancelled are not written, unless their group is under way.

    ``commit`` writes the items of a group and returns their results, or errors that are raised for single items.

    Example::

        from stepwell.engine import GroupCommit

        async def commit(group):
            return [item.upper() for item in group]

        writes = GroupCommit(commit, name="writes")
        assert await asyncio.gather(writes.put("a"), writes.put("b")) == ["A", "B"]
    """

    def __init__(self, commit: Callable[[Any], Awaitable[Sequence[R | Exception]]], *, name: str) -> None:
        self._commit = commit
        self._name = name
        self._queue: deque[tuple[T, asyncio.Future[R]]] = deque()
        self._runner: asyncio.Task[None] | None = None
        #: Items that wait for others, and when they are written at the latest.
        self._lingering: list[tuple[T, asyncio.Future[R]]] = []
        self._due = 0.0
        #: The event loop with a running timer. One timer serves many groups, because few are written when they are due.
        self._timed: asyncio.AbstractEventLoop | None = None

    @property
    def waiting(self) -> int:
        """The number of items that wait, without those that are being written."""
        return len(self._lingering) + len(self._queue)

    @property
    def idle(self) -> bool:
        """Whether no item waits or is being written."""
        return self._runner is None and not self._lingering

    def put(self, item: T, *, linger: float = 0.0) -> asyncio.Future[R]:
        """Queue an item, and return the future of its result.

        ``linger``: wait up to so many seconds for an item that does not linger, to share its write.
        """
        # get_running_loop() takes a system call before Python 3.12.
        loop = asyncio.get_running_loop() if self._runner is None else self._runner.get_loop()
        future: asyncio.Future[R] = loop.create_future()
        if linger and not self._queue:
            if not self._lingering:
                self._due = loop.time() + linger
            self._lingering.append((item, future))
            if self._timed is not loop:
                self._timed = loop
                loop.call_at(self._due, self._check, loop)
            return future
        if self._lingering:
            self._end_lingering()
        self._queue.append((item, future))
        if self._runner is None:
            self._start()
        return future

    async def flush(self) -> None:
        """Write all items."""
        self._end_lingering()
        while self._runner is not None:
            await asyncio.wait([self._runner])

    async def take_back(self) -> list[T]:
        """Wait for the write that is under way, and return the items that linger, which are not written."""
        items = [item for item, _ in self._lingering]
        self._lingering.clear()
        while self._runner is not None:
            await asyncio.wait([self._runner])
        return items

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write the items that linger and are due."""
        self._timed = None
        if self._lingering and loop.time() < self._due:
            self._timed = loop
            loop.call_at(self._due, self._check, loop)
        else:
            self._end_lingering()

    def _end_lingering(self) -> None:
        self._queue.extend(self._lingering)
        self._lingering.clear()
        if self._queue and self._runner is None:
            self._start()

    def _start(self) -> None:
        self._runner = asyncio.get_running_loop().create_task(self._drain(), name=self._name)

    async def _drain(self) -> None:
        group: list[tuple[T, asyncio.Future[R]]] = []
        try:
            while group := self._take():
                await self._write(group)
        finally:
            self._runner = None
            # These remain only if the event loop is shutting down.
            for _, future in (*group, *self._queue):
                future.cancel()
            self._queue.clear()

    def _take(self) -> list[tuple[T, asyncio.Future[R]]]:
        """Remove the items of the next group from the queue. It is empty if the queue is empty."""
        group = [entry for entry in self._queue if not entry[1].cancelled()]
        self._queue.clear()
        return group

    async def _write(self, group: list[tuple[T, asyncio.Future[R]]]) -> None:
        """Write a group, and pass the results or the error to its waiters."""
        try:
            results = await self._commit([item for item, _ in group])
        except Exception as error:  # noqa: BLE001 it is raised where the results are awaited
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
        else:
            for (_, future), result in zip(group, results, strict=True):
                if future.done():
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)
