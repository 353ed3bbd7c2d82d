"""Appends that wait for their write: those that arrive while one is written share the next write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple, Protocol

from stepwell.errors import Busy, TooLarge
from stepwell.storage.transport.group_commit import GroupCommit

__all__ = ["MOST_VALUES", "AppendQueue", "LogOptions", "PendingAppend"]

#: The limits of one write. More appends are written in several.
MOST_VALUES: Final = 1000
MOST_BYTES: Final = 1024 * 1024


class LogOptions(NamedTuple):
    """The options of a log that its writes need."""

    limit: int
    ttl: float | None
    tags: tuple[str, ...]
    wait: float


class PendingAppend(NamedTuple):
    """An append that waits for its write."""

    #: The values as JSON.
    bodies: Sequence[bytes]
    options: LogOptions
    #: Called after the write.
    written: Callable[[], None]
    #: The mark of an append in a handler, by which a repeated one is found.
    mark: str | None = None


class _Tail(Protocol):
    """The methods of ``Tail`` that write appends."""

    def locked(self, wait: float) -> AbstractAsyncContextManager[None]: ...

    async def append(
        self, appends: Sequence[tuple[Sequence[bytes], str | None]], options: LogOptions
    ) -> list[range]: ...


class AppendQueue(GroupCommit[PendingAppend, range]):
    """The appends of this process to one log."""

    def __init__(self, tail: _Tail) -> None:
        super().__init__(self._append, name="stepwell-log")
        self._tail = tail

    def _take(self) -> list[tuple[PendingAppend, asyncio.Future[range]]]:
        group: list[tuple[PendingAppend, asyncio.Future[range]]] = []
        count = size = 0
        while self._queue and count < MOST_VALUES and size < MOST_BYTES:
            pending, numbers = self._queue[0]
            if group and pending.options != group[0][0].options:
                break
            self._queue.popleft()
            if not numbers.cancelled():
                group.append((pending, numbers))
                count += len(pending.bodies)
                size += sum(map(len, pending.bodies))
        return group

    async def _write(self, group: list[tuple[PendingAppend, asyncio.Future[range]]]) -> None:
        try:
            async with self._tail.locked(group[0][0].options.wait):
                # Others may have been cancelled meanwhile.
                await super()._write([entry for entry in group if not entry[1].done()])
        except Busy as error:
            for _, numbers in group:
                if not numbers.done():
                    numbers.set_exception(error)

    async def _append(self, group: list[PendingAppend]) -> list[range | Exception]:
        """Return the numbers of each append, or its error."""
        if not group:
            return []
        try:
            found = await self._tail.append([(each.bodies, each.mark) for each in group], group[0].options)
        except TooLarge as error:
            # Some of them may fit.
            return [error] if len(group) == 1 else [(await self._append([each]))[0] for each in group]
        group[0].written()
        return [*found]
