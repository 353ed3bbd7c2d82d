"""Tasks that end together, and know whether they are to end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self
from weakref import WeakKeyDictionary

__all__ = ["CANCELLATIONS_ARE_COUNTED_RIGHT", "Halt", "WorkGroup", "group_of"]

#: Before Python 3.13, an ``asyncio.TaskGroup`` whose task fails leaves its own task marked as cancelled for good.
CANCELLATIONS_ARE_COUNTED_RIGHT = sys.version_info >= (3, 13)


class Halt(Exception):
    """Ends work that runs together; why is on record. Never seen outside."""


class WorkGroup:
    """``async with`` tasks: it ends when the last of them has; an error of one cancels the others.

    Whether its tasks are to end is known here, not counted: what they run may use an ``asyncio.TaskGroup``, and
    be marked by it.
    """

    __slots__ = ("__weakref__", "_empty", "_errors", "_tasks", "cancelled")

    def __init__(self) -> None:
        #: Its tasks were told to end.
        self.cancelled = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._errors: list[BaseException] = []
        self._empty: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.cancel()
        cancelled: asyncio.CancelledError | None = None
        while self._tasks:
            self._empty = asyncio.get_running_loop().create_future()
            try:
                await self._empty
            except asyncio.CancelledError as from_outside:
                cancelled = from_outside
                self.cancel()
        if error is None and cancelled is None and self._errors:
            raise self._errors[0]
        if error is None and cancelled is not None:
            raise cancelled

    def create_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin with a work; a :class:`Halt` from it cancels the others, and is not raised."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        _groups[task] = self
        task.add_done_callback(self._ended)
        if self.cancelled:
            task.cancel()

    def cancel(self) -> None:
        """Tell all tasks to end."""
        self.cancelled = True
        for task in self._tasks:
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, Halt):
                self._errors.append(error)
            self.cancel()
        if not self._tasks and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)


_groups: WeakKeyDictionary[asyncio.Task[Any], WorkGroup] = WeakKeyDictionary()


def group_of(task: asyncio.Task[Any]) -> WorkGroup | None:
    """The group that a task belongs to."""
    return _groups.get(task)
