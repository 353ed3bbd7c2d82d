"""Polling for records whose deadline has passed: one task for each, and a growing pause after a failure."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any

from stepwell._backoff import backoff
from stepwell.errors import StorageError, Unsupported
from stepwell.record import Address
from stepwell.storage.contract import Storage
from stepwell.storage.listing import Due
from stepwell.storage.transport.outage import OutageLog

__all__ = ["DueTasks", "Pauses", "poll"]

logger: logging.Logger = logging.getLogger(__name__)

#: Seconds between two polls.
TICK = 0.5
#: The number of concurrent tasks.
AT_ONCE = 32
PAGE = 200
#: The maximum number of pauses. Beyond it the oldest is dropped, and its address is handled again.
MOST_PAUSES = 100_000
#: The longest interval between polls that fail with an unexpected error, in seconds.
LONGEST_TICK = 30.0


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
        first, longest = pauses or (self._first, self._longest)
        failures = self._ends.pop(address, (0, 0.0))[0] + 1
        self._ends[address] = (failures, asyncio.get_running_loop().time() + backoff(failures, first, longest))
        if len(self._ends) > MOST_PAUSES:
            del self._ends[next(iter(self._ends))]

    def remove(self, address: Address) -> None:
        """Reset the pause of an address after a success."""
        self._ends.pop(address, None)

    def keep(self, seen: Collection[Address]) -> None:
        """Remove the addresses that are not in ``seen``."""
        self._ends = {address: pause for address, pause in self._ends.items() if address in seen}


class DueTasks:
    """Polls a namespace for due records, and starts one task for each address.

    ``attend``: handles an address and returns whether it did anything. It calls ``pause`` after a failure.
    ``pauses``: the first and the longest pause, in seconds. ``what``: names the records in the log.
    ``waits``: whether a poll waits for free tasks until it has started all due records. Otherwise it stops if no task
    ends within a tick. ``skip``: whether to ignore an address. ``at_once``: the number of concurrent tasks.
    """

    def __init__(
        self,
        storage: Storage,
        namespace: str,
        attend: Callable[[Address], Coroutine[Any, Any, bool]],
        *,
        what: str,
        waits: bool,
        pauses: tuple[float, float],
        skip: Callable[[Address], bool] = lambda address: False,
        at_once: int | None = None,
    ) -> None:
        self._storage = storage
        self._namespace = namespace
        self._attend = attend
        self._what = what
        self._waits = waits
        self._skip = skip
        self._at_once = AT_ONCE if at_once is None else at_once
        self._looking: asyncio.Task[None] | None = None
        self._running: dict[Address, asyncio.Task[bool]] = {}
        self._pauses = Pauses(*pauses)

    def start(self) -> None:
        """Start polling."""
        if self._looking is None or self._looking.done():
            # A slow task delays its own key only, so the tasks are not awaited.
            looking = poll(self.look, _sleep, self._what)
            self._looking = asyncio.get_running_loop().create_task(looking, name=f"stepwell-{self._what}")

    async def stop(self, *, timeout: float = 0.0) -> None:
        """Stop polling, wait for running tasks, and cancel them after the timeout, in seconds.

        The record of a cancelled task is either committed or stays due.
        """
        looking, self._looking = self._looking, None
        try:
            if looking is not None:
                looking.cancel()
                await asyncio.wait((looking,))
            if timeout and self._running:
                await asyncio.wait(self._running.values(), timeout=timeout)
        finally:
            late = list(self._running.values())
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    async def look(self) -> list[asyncio.Task[bool]]:
        """Start tasks for the records that are due now, and return the tasks."""
        begun: list[asyncio.Task[bool]] = []
        seen: set[Address] = set()
        last: Due | None = None
        while page := await self._storage.due(self._namespace, limit=PAGE, after=last):
            last = page[-1]
            seen.update(due.address for due in page)
            ready = [due.address for due in page]
            # Workers that read the same page start at different records.
            random.shuffle(ready)
            for address in ready:
                while len(self._running) >= self._at_once and not self._ignores(address):
                    timeout = None if self._waits else TICK
                    running = self._running.values()
                    ended, _ = await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                    if not ended:
                        return begun
                if not self._ignores(address):
                    begun.append(self._begin(address))
            if len(page) < PAGE:
                break
        self._pauses.keep(seen)
        return begun

    def pause(self, address: Address, pauses: tuple[float, float] | None = None) -> None:
        """Ignore an address for a while, longer each time. ``pauses`` overrides the usual ones."""
        self._pauses.add(address, pauses)

    def unpause(self, address: Address) -> None:
        """Reset the pause of an address after a success."""
        self._pauses.remove(address)

    def _begin(self, address: Address) -> asyncio.Task[bool]:
        name = f"stepwell-{self._what} {address.key}"
        task = asyncio.get_running_loop().create_task(self._attend(address), name=name)
        self._running[address] = task
        task.add_done_callback(lambda task: self._ended(address, task))
        return task

    def _ended(self, address: Address, task: asyncio.Task[bool]) -> None:
        del self._running[address]
        if not task.cancelled() and task.exception() is not None:
            logger.error("handling %s at %s failed", self._what, address.text, exc_info=task.exception())
            self.pause(address)

    def _ignores(self, address: Address) -> bool:
        """Return whether to ignore an address: it is running, skipped, or paused."""
        return address in self._running or self._skip(address) or address in self._pauses


async def _sleep(pause: float) -> None:
    await asyncio.sleep(max(pause, TICK) * random.uniform(0.8, 1.2))
