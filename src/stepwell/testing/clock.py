"""A clock for tests, which moves only when it is advanced."""

from __future__ import annotations

__all__ = ["Clock"]


class Clock:
    """Pass it to a storage as ``clock=``, then call ``advance()``.

    Example::

        clock = Clock()
        storage = MemoryStorage(clock=clock)
        clock.advance(3600)
    """

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now: float = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self.now += seconds
