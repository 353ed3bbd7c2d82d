"""Retry while a key is busy or the storage is unavailable: a framework cannot give an update back to Telegram."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from stepwell.errors import Busy, Conflict, StorageError, StorageUnavailable

__all__ = ["TEMPORARY", "retry_until_free"]

logger: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Errors that an update did not cause. Other errors would occur again with every delivery.
TEMPORARY = (Conflict, StorageError)

#: Seconds between two attempts while the storage is unavailable: the first delay, and the longest.
FIRST_DELAY, LONGEST_DELAY = 0.2, 5.0


async def retry_until_free(operation: Callable[[], Awaitable[T]]) -> T:
    """Call ``operation`` until it raises neither ``Busy`` nor ``StorageUnavailable``; log each retry."""
    delay = FIRST_DELAY
    while True:
        try:
            return await operation()
        except Busy as busy:
            logger.warning("%s is still held elsewhere after %g s; waiting longer", busy.place, busy.waited)
        except StorageUnavailable as error:
            if error.final:
                raise
            logger.warning("the storage is unavailable (%s); retrying in %g s", error, delay)
            await asyncio.sleep(delay)
            delay = min(delay * 2, LONGEST_DELAY)
