"""Patience: a framework that has taken an update off Telegram's hands must not drop it because a key is busy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from stepwell.errors import Busy, StorageUnavailable

__all__ = ["patiently"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds between two tries while the storage is away: the first pause, and the longest.
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0


async def patiently(enter: Callable[[], Awaitable[T]]) -> T:
    """Try until the claim is there, with a warning each time it was not."""
    pause = FIRST_PAUSE
    while True:
        try:
            return await enter()
        except Busy as busy:
            logger.warning("%s is still being handled elsewhere after %g s; waiting on", busy.place, busy.waited)
        except StorageUnavailable as error:
            if error.final:
                raise
            logger.warning("the storage is away (%s); waiting for it", error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
