"""Tells why a run has lost its runner: its process died, its event loop was blocked, or its storage was unavailable.

A run whose runner dies too often is stuck, so only real deaths may count.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from stepwell.nodes.run import lease

if TYPE_CHECKING:
    from stepwell.record import Version
    from stepwell.slot import Slot

__all__ = ["LoopLag", "begin_suspect", "end_suspect", "leave_alive", "measure_lag", "was_left_alive"]

#: A run whose runner has died this often since its last completed node is a suspect: it may have killed its process.
DEATHS = 2
#: The number of ticks per lease. The delays of so many ticks are remembered.
TICKS = 10
#: The most runs that were left alive that are remembered; the oldest are forgotten.
MOST = 10_000

#: The suspect that this process runs.
_suspects: list[object] = []
#: The versions of the runs that this process has left because of their storage.
_left: dict[tuple[object, str], Version | None] = {}


def begin_suspect(run: object, deaths: int) -> bool:
    """Return whether this process may run a run now: it is no suspect, or it is the only one.

    If a run kills its process, the runs beside it lose their runner too. They complete a node when they run without it,
    so only the run that kills its process reaches ``max_recoveries``.
    """
    if deaths < DEATHS:
        return True
    if _suspects:
        return False
    _suspects.append(run)
    return True


def end_suspect(run: object) -> None:
    """Let this process run another suspect, because this run has completed a node or has ended."""
    if run in _suspects:
        _suspects.remove(run)


def leave_alive(slot: Slot) -> None:
    """Remember that this process left a run because of its storage; its record looks as if its runner had died."""
    key = (slot.storage.wake_key, slot.address.key)
    _left.pop(key, None)
    _left[key] = slot.version
    if len(_left) > MOST:
        del _left[next(iter(_left))]


def was_left_alive(slot: Slot) -> bool:
    """Return whether this process was the last runner of a run that was just loaded, and left it; forget it."""
    key = (slot.storage.wake_key, slot.address.key)
    return key in _left and _left.pop(key) == slot.version


class LoopLag:
    """A timer of one event loop, and by how much its last ticks were late. A blocked loop counts as a death."""

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


def measure_lag() -> LoopLag:
    """Begin to measure the lag of the running loop while durable runs execute in it. The caller calls ``end()``."""
    loop = asyncio.get_running_loop()
    lag = _of_loops.get(loop)
    if lag is None:
        lag = _of_loops[loop] = LoopLag()
    lag.begin()
    return lag
