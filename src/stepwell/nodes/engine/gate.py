"""A bound on how much runs at once, over any number of nested flows."""

from __future__ import annotations

import asyncio
from types import TracebackType

__all__ = ["Gate"]


class Gate:
    """Takes one permit of each semaphore, always in the same order, and gives them back.

    Only an ``exec`` holds permits, and it waits for nothing that needs one: so no two gates can
    wait for each other.
    """

    __slots__ = ("_passes",)

    def __init__(self, passes: list[asyncio.Semaphore]) -> None:
        self._passes = passes

    async def __aenter__(self) -> None:
        held = 0
        try:
            for semaphore in self._passes:
                await semaphore.acquire()
                held += 1
        except BaseException:
            for semaphore in self._passes[:held]:
                semaphore.release()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for semaphore in self._passes:
            semaphore.release()
