"""A task group that knows whether its tasks were cancelled."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self
from weakref import WeakKeyDictionary

__all__ = ["CANCELLATIONS_ARE_COUNTED_RIGHT", "Halt", "WorkGroup", "group_of", "marks_of", "was_marked_by"]

#: Before Python 3.13, an ``asyncio.TaskGroup`` whose task fails leaves its own task marked as cancelled for good.
CANCELLATIONS_ARE_COUNTED_RIGHT = sys.version_info >= (3, 13)


class Halt(Exception):
    """Ends work that runs together; why is on record. Never seen outside."""


class WorkGroup:
    """``async with`` tasks: it ends when the last of them has; an error of one cancels the others.

    Whether its tasks are to end is known here, not counted: what they run may use an ``asyncio.TaskGroup``, and
    be marked by it.
    """

    __slots__ = ("__weakref__", "_empty", "_errors", "_marked", "_parent", "_tasks", "cancelled")

    def __init__(self) -> None:
        #: Its tasks were told to end.
        self.cancelled = False
        self._parent = asyncio.current_task()
        self._marked = 0 if self._parent is None else marks_of(self._parent)
        #: A dict for its order: tasks are cancelled in the order in which they were created.
        self._tasks: dict[asyncio.Task[None], None] = {}
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
        # Never at once, whatever factory the loop has: it must belong to its group before it runs.
        task = asyncio.Task(work, loop=asyncio.get_running_loop())
        _groups[task] = self
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        if self.cancelled:
            task.cancel()

    def ending(self) -> bool:
        """Whether its tasks are to end: they, or the one that waits for them, which may not have run since."""
        return self.cancelled or (self._parent is not None and self._parent.cancelling() > self._marked)

    def cancel(self) -> None:
        """Tell all tasks to end."""
        self.cancelled = True
        for task in self._tasks:
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, Halt):
                self._errors.append(error)
            self.cancel()
        if not self._tasks and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)


_groups: WeakKeyDictionary[asyncio.Task[Any], WorkGroup] = WeakKeyDictionary()


def marks_of(task: asyncio.Task[Any]) -> int:
    """How often a task was cancelled and has lived on. One that it has not noticed yet is not among them."""
    return task.cancelling() - bool(getattr(task, "_must_cancel", False))


def was_marked_by(error: BaseException | None) -> bool:
    """Whether this comes from a ``TaskGroup`` that has marked its own task as cancelled, and left it so."""
    if CANCELLATIONS_ARE_COUNTED_RIGHT or not isinstance(error, BaseExceptionGroup) or error.__traceback__ is None:
        return False
    last = error.__traceback__
    while last.tb_next is not None:
        last = last.tb_next
    group = last.tb_frame.f_locals.get("self")
    # It alone knows: the mark may as well be somebody's who wants the task to end.
    return isinstance(group, asyncio.TaskGroup) and bool(getattr(group, "_parent_cancel_requested", False))


def group_of(task: asyncio.Task[Any]) -> WorkGroup | None:
    """The group that a task belongs to."""
    return _groups.get(task)
