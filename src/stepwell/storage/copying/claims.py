"""For work on all records of a storage: claims that wait, and many tasks at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable
from math import inf

from stepwell.errors import Busy
from stepwell.record import Address
from stepwell.storage.contract import Storage
from stepwell.storage.operations import Claim, Claimed, Taken

__all__ = ["PatientClaims", "all_ended"]

logger: logging.Logger = logging.getLogger(__name__)

#: Seconds after which a wait is logged, and between two lines: a killed copy leaves many records held.
LOG_AFTER, LOG_EVERY = 1.0, 10.0


class PatientClaims:
    """Claims that wait while another token has the record, for up to ``wait`` seconds each. Long waits are logged."""

    def __init__(self, wait: float) -> None:
        self._wait = wait
        self._logged_at = -inf

    async def claim(self, storage: Storage, address: Address, token: str, lease: float) -> Claimed:
        """Claim an address. Raises ``Busy`` if another token has it for too long."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            result = await storage.perform(Claim(address, token, lease))
            if not isinstance(result, Taken):
                claimed: Claimed = result
                return claimed
            now = loop.time()
            if now >= began + self._wait:
                raise Busy(address.text, self._wait)
            if now >= max(began + LOG_AFTER, self._logged_at + LOG_EVERY):
                self._logged_at = now
                logger.warning(
                    "waiting for %s in %s: it is held, by a running handler or by a process that was killed, for up to "
                    "%.0f s more",
                    address.text,
                    storage.location,
                    result.remaining,
                )
            await asyncio.sleep(min(0.1, max(result.remaining, 0.001)))


async def all_ended(works: Iterable[Awaitable[None]]) -> None:
    """Await all concurrently, and raise the first error after all have ended."""
    results = await asyncio.gather(*works, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
