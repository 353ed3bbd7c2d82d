"""A timeout for the calls of one connection."""

from __future__ import annotations

import asyncio

__all__ = ["CallTimeout"]


class CallTimeout:
    """Cancels the current task if a call takes too long. Made for one call at a time.

    One timer serves many calls: starting and cancelling one for each, as ``asyncio.timeout`` does, would take about as
    many Python calls as the rest of a round trip.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._task: asyncio.Task[object] | None = None
        #: How many cancellations of the task were pending when the call began.
        self._cancelling = 0
        self._expired = False

    def start(self) -> None:
        """Begin a call of the current task."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None
        self._task, self._cancelling, self._expired = task, task.cancelling(), False
        self._deadline = loop.time() + self.seconds
        if self._timer is None:
            self._timer = loop.call_at(self._deadline, self._check)

    def end(self) -> bool:
        """End the call; return whether the ``CancelledError`` that it raised came from this timeout alone."""
        task, self._task = self._task, None
        return self._expired and task is not None and task.uncancel() <= self._cancelling

    @property
    def elapsed(self) -> float:
        """The seconds since the call began, or 0 without a call."""
        return 0.0 if self._task is None else self._task.get_loop().time() - self._deadline + self.seconds

    def expire(self) -> bool:
        """End the call in progress as if it had taken too long; return whether there is one."""
        if self._task is None:
            return False
        if not self._expired:
            self._expired = True
            self._task.cancel()
        return True

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = None
        if self._task is None:
            return
        loop = self._task.get_loop()
        if loop.time() < self._deadline:
            self._timer = loop.call_at(self._deadline, self._check)
        else:
            self.expire()
