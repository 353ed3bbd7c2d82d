"""The clock of a storage, for writers that do not hold a claim."""

from __future__ import annotations

from time import monotonic

from stepwell import Storage
from stepwell.engine import TURNS, Claim, Claimed, Release

__all__ = ["StorageClock"]

#: Seconds after which the clock of the storage is read again. Clocks of machines drift apart by far less in that time.
READ_EVERY = 600.0


class StorageClock:
    """The time on the backend's clock, which the timers of all processes are on."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._offset = 0.0
        self._read_at: float | None = None

    async def now(self) -> float:
        """Return the time. The first call, and one every few minutes, asks the backend."""
        if self._storage.clock is not None:
            return self._storage.clock()
        if self._read_at is None or monotonic() - self._read_at > READ_EVERY:
            token = self._storage.ids()
            address = self._storage.address(TURNS, ("clock", token))
            claimed = await self._storage.perform(Claim(address, token, lease=1.0))
            assert isinstance(claimed, Claimed)
            self.note(claimed.now)
            await self._storage.perform(Release(address, token))
        return self._offset + monotonic()

    def note(self, now: float) -> None:
        """Note the time of a write."""
        self._read_at = monotonic()
        self._offset = now - self._read_at
