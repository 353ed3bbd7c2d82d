"""An event loop whose clock jumps to the next timer whenever nothing is ready: 20 seconds take some milliseconds."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

__all__ = ["VirtualTimeLoop"]


class _JumpingSelector(selectors.DefaultSelector):
    """Moves the clock of its loop on instead of waiting. Connections within this process are ready at once."""

    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        # A connection has delivered what was written to it when the other side looks again.
        ready = super().select(0.001 if timeout is None or timeout > 0 else 0)
        if not ready and timeout is None:
            return super().select(None)
        if not ready and timeout:
            self.loop.jumped += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop with a clock of its own."""

    def __init__(self) -> None:
        self.jumped = 0.0
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.jumped
