"""The rate of a flow: how many of its queued runs all workers together start in a time.

One record for each flow has the times of the last starts, on the storage's clock. Starts that are close together share
an entry, so that the record stays small. An entry counts until its last start is older than the period.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from stepwell.codec.values import conform
from stepwell.errors import Busy, StoredDataError
from stepwell.record import RATES
from stepwell.slot import Slot

if TYPE_CHECKING:
    from stepwell.storage import Storage

__all__ = ["Rate"]

logger: logging.Logger = logging.getLogger(__name__)

#: An entry has the starts of this fraction of the period. A permit that was not used is valid as long.
_FRACTION = 1 / 20
#: The longest time in seconds before a rate that is used up is read again.
_LONGEST = 10.0

#: Time of the first and of the last start, and their number.
_Entries = list[tuple[float, float, int]]


class Rate:
    """The rate of one flow, as one worker sees it."""

    def __init__(self, storage: Storage, flow: str, count: int, seconds: float) -> None:
        self._storage = storage
        self._flow = flow
        self._count = count
        self._seconds = float(seconds)
        #: When permits may be free again, in loop time.
        self.free_at: float = 0.0
        #: The times of permits that were not used, in loop time.
        self._unused: list[float] = []

    async def take(self, wanted: int) -> int:
        """Return how many of the wanted runs may start now. If there are fewer, ``free_at`` is in the future."""
        loop = asyncio.get_running_loop()
        self._unused = [at for at in self._unused if at > loop.time() - self._seconds * _FRACTION]
        again = min(wanted, len(self._unused))
        del self._unused[:again]
        if wanted == again or loop.time() < self.free_at:
            return again
        try:
            async with Slot(self._storage, RATES, self._flow, wait=2.0, lease=5.0) as slot:
                entries = _entries(slot.data.get("starts", []), slot.now - self._seconds)
                got = min(wanted - again, self._count - sum(number for *_, number in entries))
                if got < wanted - again:
                    until = entries[0][1] + self._seconds - slot.now if entries else self._seconds
                    self.free_at = loop.time() + min(max(until, 0.001), _LONGEST)
                if got > 0:
                    slot.data = {"starts": _added(entries, slot.now, got, self._seconds * _FRACTION)}
                    await slot.commit(expiry=self._seconds + 60.0)
        except Busy:
            self.free_at = loop.time() + 0.1
            return again
        except StoredDataError as error:
            # The record expires by itself. Other flows go on.
            logger.warning("flow %r starts no queued runs, because its rate cannot be read: %s", self._flow, error)
            self.free_at = loop.time() + _LONGEST
            return again
        return again + max(got, 0)

    def give_back(self) -> None:
        """Use the permit of a run that was not started here for another run."""
        self._unused.append(asyncio.get_running_loop().time())
        self.free_at = 0.0


def _entries(stored: Any, after: float) -> _Entries:
    """Return the entries that still count; a damaged record counts nothing."""
    if conform(stored, _Entries)[1] is not None:
        return []
    return [(first, last, number) for first, last, number in stored if last > after]


def _added(entries: _Entries, now: float, number: int, length: float) -> list[list[float | int]]:
    if entries and now - entries[-1][0] < length:
        first, _, before = entries[-1]
        entries = [*entries[:-1], (first, max(now, entries[-1][1]), before + number)]
    else:
        entries = [*entries, (now, now, number)]
    return [list(entry) for entry in entries]
