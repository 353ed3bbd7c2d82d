"""Polling that survives every error, and the pauses of records that could not be served."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from stepwell._backoff import backoff
from stepwell.errors import StorageError, Unsupported
from stepwell.record import Address
from stepwell.storage.transport.outage import OutageLog

__all__ = ["Pauses", "poll"]

logger: logging.Logger = logging.getLogger(__name__)

#: Seconds between two polls.
TICK = 0.5
#: The longest interval between polls that fail with an unexpected error, in seconds.
LONGEST_TICK = 30.0
#: The maximum number of pauses of a source. Beyond it the oldest is dropped, and its address is served again.
MOST_PAUSES = 100_000


async def poll(look: Callable[[], Awaitable[object]], rest: Callable[[float], Awaitable[object]], what: str) -> None:
    """Call ``look`` and ``rest`` in turn, until cancelled. Errors are logged; what ``look`` handles stays stored.

    ``rest`` gets the seconds to wait after an error, or 0 after a success.
    """
    outage = OutageLog(logger, f"{what} cannot be read: %s", f"{what} can be read again, after %.0f s")
    tick = TICK
    while True:
        pause = 0.0
        try:
            await look()
            tick = TICK
            outage.worked()
        except StorageError as error:
            # Nothing is lost while the storage is unavailable: the records stay due.
            pause = TICK
            outage.failed(error)
        except Unsupported:
            # The storage does not support deadlines, so polling is pointless.
            logger.exception("stopped polling for %s in this process", what)
            return
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
                raise
            pause = tick = min(2 * tick, max(TICK, LONGEST_TICK))
            logger.exception("polling for %s failed; next attempt in %.1f s", what, tick)
        await rest(pause)


class Pauses:
    """The addresses to ignore for a while after a failure, longer each time."""

    def __init__(self, first: float, longest: float) -> None:
        self._first, self._longest = first, longest
        #: For each failed address: the failures in a row, and the end of its pause in loop time.
        self._ends: dict[Address, tuple[int, float]] = {}

    def __contains__(self, address: Address) -> bool:
        return address in self._ends and self._ends[address][1] > asyncio.get_running_loop().time()

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, address: Address, pauses: tuple[float, float] | None = None) -> None:
        """Ignore an address for a while. ``pauses`` overrides the first and the longest pause."""
        now = asyncio.get_running_loop().time()
        first, longest = pauses or (self._first, self._longest)
        failures, end = self._ends.pop(address, (0, now))
        # A failure long after the pause has nothing to do with the last one.
        failures = 1 if now > end + longest else failures + 1
        self._ends[address] = (failures, now + backoff(failures, first, longest))
        oldest = next(iter(self._ends))
        if len(self._ends) > MOST_PAUSES or self._ends[oldest][1] + longest < now:
            del self._ends[oldest]

    def remove(self, address: Address) -> None:
        """Reset the pause of an address after a success."""
        self._ends.pop(address, None)
