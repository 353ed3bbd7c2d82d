"""A clock that moves only when it is told to."""

from __future__ import annotations

__all__ = ["Clock"]


class Clock:
    """Give it to a storage as ``clock=``, then move time by hand."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass."""
        self.now += seconds
