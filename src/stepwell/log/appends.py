"""Appends that wait for their write: those that arrive while one is written share the next write."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple, Protocol

from stepwell.errors import Busy, TooLarge

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
    #: The numbers of its entries.
    numbers: asyncio.Future[range]
    #: The mark of an append in a handler, by which a repeated one is found.
    mark: str | None = None


class _Tail(Protocol):
    """The methods of ``Tail`` that write appends."""

    def locked(self, wait: float) -> AbstractAsyncContextManager[None]: ...

    async def append(
        self, appends: Sequence[tuple[Sequence[bytes], str | None]], options: LogOptions
    ) -> list[range]: ...


class AppendQueue:
    """The appends of this process to one log."""

    def __init__(self, tail: _Tail) -> None:
        self._tail = tail
        self._pending: deque[PendingAppend] = deque()
        self._task: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Whether no append waits."""
        return self._task is None

    def put(self, pending: PendingAppend, written: Callable[[], None]) -> None:
        """Write an append, together with others that wait. ``written`` is called after each write."""
        self._pending.append(pending)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain(written), name="stepwell-log")

    async def _drain(self, written: Callable[[], None]) -> None:
        batch: list[PendingAppend] = []
        try:
            while self._pending:
                batch = []
                try:
                    async with self._tail.locked(self._pending[0].options.wait):
                        batch = self._take()
                        if batch:
                            await self._write_all(batch)
                            written()
                except Busy as error:
                    _fail(self._take(), error)
        finally:
            self._task = None
            # These remain only if the event loop is shutting down.
            for pending in (*batch, *self._pending):
                pending.numbers.cancel()
            self._pending.clear()

    def _take(self) -> list[PendingAppend]:
        batch: list[PendingAppend] = []
        count = size = 0
        while self._pending and count < MOST_VALUES and size < MOST_BYTES:
            if batch and self._pending[0].options != batch[0].options:
                break
            pending = self._pending.popleft()
            if not pending.numbers.cancelled():
                batch.append(pending)
                count += len(pending.bodies)
                size += sum(map(len, pending.bodies))
        return batch

    async def _write_all(self, batch: Sequence[PendingAppend]) -> None:
        try:
            appends = [(pending.bodies, pending.mark) for pending in batch]
            found = await self._tail.append(appends, batch[0].options)
        except TooLarge as error:
            if len(batch) == 1:
                _fail(batch, error)
            else:
                # Some of them may fit.
                for pending in batch:
                    await self._write_all([pending])
        except Exception as error:  # noqa: BLE001 it is raised where the append is awaited
            _fail(batch, error)
        else:
            for pending, numbers in zip(batch, found, strict=True):
                if not pending.numbers.done():
                    pending.numbers.set_result(numbers)


def _fail(batch: Sequence[PendingAppend], error: Exception) -> None:
    for pending in batch:
        if not pending.numbers.done():
            pending.numbers.set_exception(error)
