"""Retry while a key is busy or the storage is unavailable: a framework cannot give an update back to Telegram."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TypeVar

from stepwell.errors import Busy, Conflict, StorageError, StorageUnavailable

__all__ = ["PATIENCE", "TEMPORARY", "retry_until_free"]

logger: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Errors that an update did not cause. Other errors would occur again with every delivery.
TEMPORARY = (Conflict, StorageError)

#: Seconds between two attempts while the storage is unavailable: the first delay, and the longest.
FIRST_DELAY, LONGEST_DELAY = 0.2, 5.0


#: Seconds after which ``retry_until_free`` gives up. An outage or a long handler should have ended by then.
PATIENCE = 600.0


async def retry_until_free(operation: Callable[[], Awaitable[T]], *, patience: float = PATIENCE) -> T:
    """Call ``operation`` until it raises neither ``Busy`` nor ``StorageUnavailable``; log each retry.

    After ``patience`` seconds it gives up: it logs an error, and raises the last one.
    """
    begun, delay = monotonic(), FIRST_DELAY
    while True:
        failed: Busy | StorageUnavailable
        try:
            return await operation()
        except Busy as busy:
            failed = Busy(busy.place, monotonic() - begun)
        except StorageUnavailable as error:
            if error.final:
                raise
            failed = error
        pause = 0.0 if isinstance(failed, Busy) else delay
        waited = monotonic() - begun
        if waited + pause > patience:
            logger.error("an update fails, because it has waited for %.1f s: %s", waited, failed)
            raise failed
        if isinstance(failed, Busy):
            logger.warning("%s is still held elsewhere after %.1f s; waiting longer", failed.place, waited)
            continue
        logger.warning("the storage is unavailable (%s); retrying in %g s", failed, pause)
        await asyncio.sleep(pause)
        delay = min(delay * 2, LONGEST_DELAY)
