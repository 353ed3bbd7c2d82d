"""Renewal of all leases that a storage's holders have in this process, with one timer."""

from __future__ import annotations

import asyncio
from typing import Protocol

__all__ = ["Renewals"]


class Renewable(Protocol):
    """A holder of a lease."""

    def renew_soon(self) -> None:
        """Start renewing the lease. Called in the event loop."""


class Renewals:
    """Calls holders before their leases expire. Adding and removing a holder is O(1)."""

    __slots__ = ("_at", "_due", "_loop", "_timer")

    def __init__(self) -> None:
        self._due: dict[Renewable, float] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0

    def add(self, holder: Renewable, loop: asyncio.AbstractEventLoop, after: float) -> None:
        """Renew a holder's lease after this many seconds, unless it was removed by then."""
        if self._loop is not loop:
            # The previous loop is closed, and its timer with it.
            self._loop, self._timer, self._due = loop, None, {}
        due = loop.time() + after
        self._due[holder] = due
        if self._timer is None or due < self._at:
            self._schedule(loop, due)

    def discard(self, holder: Renewable) -> None:
        """Stop renewing this holder."""
        self._due.pop(holder, None)

    def _schedule(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at = due
        self._timer = loop.call_at(due, self._fire, loop)

    def _fire(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        for holder in [holder for holder, due in self._due.items() if due <= now]:
            del self._due[holder]
            holder.renew_soon()
        if self._due:
            self._schedule(loop, min(self._due.values()))
