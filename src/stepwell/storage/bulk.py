"""For work on all records of a storage: claims that wait, and many tasks at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable

from stepwell.errors import Busy
from stepwell.record import Address
from stepwell.storage.contract import Storage
from stepwell.storage.operations import Claim, Claimed, Taken

__all__ = ["all_ended", "claim_when_free"]


async def claim_when_free(storage: Storage, address: Address, token: str, lease: float, wait: float) -> Claimed:
    """Claim an address, and wait while another token has it. Raises ``Busy`` after ``wait`` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait
    while True:
        result = await storage.perform(Claim(address, token, lease))
        if not isinstance(result, Taken):
            claimed: Claimed = result
            return claimed
        if loop.time() >= deadline:
            raise Busy(address.text, wait)
        await asyncio.sleep(min(0.1, max(result.remaining, 0.001)))


async def all_ended(works: Iterable[Awaitable[None]]) -> None:
    """Await all concurrently, and raise the first error after all have ended."""
    results = await asyncio.gather(*works, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
