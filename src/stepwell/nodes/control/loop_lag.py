"""Measures the lag of an event loop while durable runs execute in it.

A run loses its lease if its loop is blocked, or if its storage is unavailable. Only the first counts as a death of its
runner.
"""

from __future__ import annotations

import asyncio
from collections import deque
from weakref import WeakKeyDictionary

from stepwell.nodes.run import lease

__all__ = ["LoopLag", "measure"]

#: The number of ticks per lease. The delays of so many ticks are remembered.
TICKS = 10


class LoopLag:
    """A timer of one event loop, and by how much its last ticks were late."""

    def __init__(self) -> None:
        # Without the loop, which could never be freed as the key of the object that holds it.
        self._runs = 0
        #: When the next tick is due; ``None`` if the timer does not run.
        self._due: float | None = None
        self._delays: deque[float] = deque(maxlen=TICKS)

    def begin(self) -> None:
        """Measure until the same number of calls of :meth:`end`."""
        self._runs += 1
        if self._due is None:
            self._delays.clear()
            self._schedule()

    def end(self) -> None:
        """Stop with the next tick, unless other runs execute by then."""
        self._runs -= 1

    @property
    def blocked(self) -> bool:
        """Whether the loop was blocked for at least half of a lease, about within the last lease."""
        # A node that has just blocked the loop gets here before the late tick.
        overdue = 0.0 if self._due is None else max(0.0, asyncio.get_running_loop().time() - self._due)
        return sum(self._delays) + overdue >= lease.LEASE / 2

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + lease.LEASE / TICKS
        loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        assert self._due is not None
        self._delays.append(asyncio.get_running_loop().time() - self._due)
        self._due = None
        if self._runs:
            self._schedule()


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopLag] = WeakKeyDictionary()


def measure() -> LoopLag:
    """Begin to measure the lag of the running loop. The caller calls ``end()``."""
    loop = asyncio.get_running_loop()
    lag = _of_loops.get(loop)
    if lag is None:
        lag = _of_loops[loop] = LoopLag()
    lag.begin()
    return lag
