"""A slow reading of the storage that all open pages share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

__all__ = ["Reading"]

T = TypeVar("T")

#: A result is kept for this many times the time that it took, so that open pages do not load the storage.
KEPT = 20
#: Seconds that a page waits for a result.
PROMPT = 0.25


class Reading(Generic[T]):
    """Calls ``read`` when a page needs its result, and keeps the last one."""

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._last: T | None = None
        self._fresh_until: float = 0.0
        self._reading: asyncio.Task[None] | None = None

    async def get(self, *, wait: float | None = None) -> T | None:
        """Return the last result; ``None`` while the first one takes long.

        ``wait``: how many seconds to wait for a new one; by default ``PROMPT``.
        """
        if self._reading is None and time.monotonic() >= self._fresh_until:
            self._reading = asyncio.create_task(self._renew())
        if (task := self._reading) is not None:
            await asyncio.wait({task}, timeout=PROMPT if wait is None else wait)
            if task.done():
                if self._reading is task:
                    self._reading = None
                task.result()
        return self._last

    async def close(self) -> None:
        """Stop reading."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})

    async def _renew(self) -> None:
        started = time.monotonic()
        self._last = await self._read()
        now = time.monotonic()
        self._fresh_until = now + KEPT * (now - started)
