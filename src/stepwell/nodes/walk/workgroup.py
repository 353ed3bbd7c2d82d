"""A task group that knows whether its tasks were cancelled."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self
from weakref import WeakKeyDictionary

__all__ = ["TASK_GROUPS_UNCANCEL", "Halt", "WorkGroup", "group_of", "left_by_task_group", "past_cancellations"]

#: Before Python 3.13, an ``asyncio.TaskGroup`` whose task fails leaves ``cancelling()`` of its own task above 0.
TASK_GROUPS_UNCANCEL = sys.version_info >= (3, 13)


class Halt(Exception):
    """Ends a group of tasks whose error is recorded elsewhere. It never leaves the engine."""


class WorkGroup:
    """A task group that ends when its last task has ended; an error of one task cancels the others.

    It stores whether it cancelled its tasks, because ``Task.cancelling()`` also counts cancellations by an
    ``asyncio.TaskGroup`` inside the task.
    """

    def __init__(self) -> None:
        #: Whether it has cancelled its tasks.
        self.cancelled: bool = False
        self._parent = asyncio.current_task()
        self._past_cancellations = 0 if self._parent is None else past_cancellations(self._parent)
        #: A dict as an ordered set: tasks are cancelled in the order in which they were created.
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
        """Start a task; a :class:`Halt` from it cancels the others, and is not raised."""
        # Not by the loop's task factory: an eager task would run before it belongs to its group.
        task = asyncio.Task(work, loop=asyncio.get_running_loop())
        _groups[task] = self
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        if self.cancelled:
            task.cancel()

    def ending(self) -> bool:
        """Return whether its tasks, or the task that waits for them, were cancelled."""
        return self.cancelled or (self._parent is not None and self._parent.cancelling() > self._past_cancellations)

    def cancel(self) -> None:
        """Cancel all tasks."""
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


def past_cancellations(task: asyncio.Task[Any]) -> int:
    """Return how many cancellations a task has survived, without counting an undelivered one."""
    return task.cancelling() - bool(getattr(task, "_must_cancel", False))


def left_by_task_group(error: BaseException | None) -> bool:
    """Return whether the error comes from a ``TaskGroup`` that cancelled its own task and did not undo it."""
    if TASK_GROUPS_UNCANCEL or not isinstance(error, BaseExceptionGroup) or error.__traceback__ is None:
        return False
    last = error.__traceback__
    while last.tb_next is not None:
        last = last.tb_next
    group = last.tb_frame.f_locals.get("self")
    # Without its own flag, the cancellation could be one from outside.
    return isinstance(group, asyncio.TaskGroup) and bool(getattr(group, "_parent_cancel_requested", False))


def group_of(task: asyncio.Task[Any]) -> WorkGroup | None:
    """Return the group of a task, if it has one."""
    return _groups.get(task)
