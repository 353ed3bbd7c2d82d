"""What one worker does about records whose deadline has come: a task for each, and a pause after one that failed."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any

from stepwell.errors import StorageError, Unsupported
from stepwell.record import Address
from stepwell.storage.contract import Due, Storage

__all__ = ["DueTasks"]

logger = logging.getLogger(__name__)

#: Seconds between two looks.
TICK = 0.5
#: How many are attended to at the same time.
AT_ONCE = 32
PAGE = 200
#: How many pauses are remembered. Beyond it the oldest is forgotten, and its address is attended to again.
MOST_PAUSES = 100_000
#: Seconds between two warnings about a storage that is away: at first, and at most.
_SAY_AGAIN = (5.0, 300.0)
#: The longest pause, in seconds, between two looks that fail with an unexpected error.
LONGEST_TICK = 30.0


class DueTasks:
    """Looks for what is due in a namespace and attends to it, each address once at a time.

    ``attend`` says whether it did anything, and calls ``pause`` for what it could not do: the pauses grow from
    the first to the longest, in seconds. ``what`` names the records in the log. With ``waits``, a look begins
    with all that is due, however long it must wait for room; otherwise, if no room gets free for a tick, the rest
    is left to the next look. ``skip`` tells what needs no attention, and takes up no room. ``at_once`` is how many
    are attended to at the same time.
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
        self._first_pause, self._longest_pause = pauses
        self._looking: asyncio.Task[None] | None = None
        self._running: dict[Address, asyncio.Task[bool]] = {}
        #: Those that failed: how long they pause, and until when (loop time).
        self._pauses: dict[Address, tuple[float, float]] = {}

    def start(self) -> None:
        """Look again and again."""
        if self._looking is None or self._looking.done():
            looking = self._look_again()
            self._looking = asyncio.get_running_loop().create_task(looking, name=f"stepwell-{self._what}")

    async def stop(self) -> None:
        """End it, and what is under way: it is either committed or stays due."""
        looking, self._looking = self._looking, None
        ending = [task for task in (looking, *self._running.values()) if task is not None]
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)

    async def look(self) -> list[asyncio.Task[bool]]:
        """Begin with what is due now; the tasks that were begun."""
        begun: list[asyncio.Task[bool]] = []
        seen: set[Address] = set()
        last: Due | None = None
        while page := await self._storage.due(self._namespace, limit=PAGE, after=last):
            last = page[-1]
            seen.update(due.address for due in page)
            ready = [due.address for due in page]
            # Workers that look at the same page begin at different places.
            random.shuffle(ready)
            for address in ready:
                while len(self._running) >= self._at_once and not self._leaves(address):
                    timeout = None if self._waits else TICK
                    running = self._running.values()
                    ended, _ = await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                    if not ended:
                        return begun
                if not self._leaves(address):
                    begun.append(self._begin(address))
            if len(page) < PAGE:
                break
        self._pauses = {address: pause for address, pause in self._pauses.items() if address in seen}
        return begun

    def pause(self, address: Address, pauses: tuple[float, float] | None = None) -> None:
        """Leave an address alone for a while, longer each time; ``pauses`` takes the place of the usual ones."""
        first, longest = pauses or (self._first_pause, self._longest_pause)
        last = self._pauses.pop(address, (0.0, 0.0))[0]
        pause = min(max(first, 2 * last), longest)
        self._pauses[address] = (pause, asyncio.get_running_loop().time() + pause)
        if len(self._pauses) > MOST_PAUSES:
            del self._pauses[next(iter(self._pauses))]

    def unpause(self, address: Address) -> None:
        """It has succeeded: the next pause is a first one again."""
        self._pauses.pop(address, None)

    async def _look_again(self) -> None:
        loop = asyncio.get_running_loop()
        #: When it is next said that the storage is away, and how long after that once more.
        say_at, say_again = 0.0, _SAY_AGAIN[0]
        away_since: float | None = None
        failed_at = 0.0
        tick = TICK
        while True:
            try:
                # What was begun is not waited for: what takes its time holds up its own key only.
                await self.look()
                tick = TICK
                if away_since is not None and loop.time() - failed_at >= _SAY_AGAIN[0]:
                    logger.warning("%s can be read again, after %.0f s", self._what, failed_at - away_since)
                    say_at, say_again, away_since = 0.0, _SAY_AGAIN[0], None
            except StorageError as error:
                # They wait in the storage: nothing is lost while it is away.
                failed_at = loop.time()
                away_since = failed_at if away_since is None else away_since
                if failed_at >= say_at:
                    logger.warning("%s cannot be read: %s", self._what, error)
                    say_at, say_again = failed_at + say_again, min(2 * say_again, _SAY_AGAIN[1])
            except Unsupported:
                # The class of the storage cannot do it, so polling is of no use.
                logger.exception("stopped polling for %s in this process", self._what)
                return
            except (Exception, asyncio.CancelledError) as error:
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
                    raise
                tick = min(2 * tick, max(TICK, LONGEST_TICK))
                logger.exception("polling for %s failed; it is tried again in %.1f s", self._what, tick)
            await asyncio.sleep(tick * random.uniform(0.8, 1.2))

    def _begin(self, address: Address) -> asyncio.Task[bool]:
        name = f"stepwell-{self._what} {address.key}"
        task = asyncio.get_running_loop().create_task(self._attend(address), name=name)
        self._running[address] = task
        task.add_done_callback(lambda task: self._ended(address, task))
        return task

    def _ended(self, address: Address, task: asyncio.Task[bool]) -> None:
        del self._running[address]
        if not task.cancelled() and task.exception() is not None:
            logger.error("attending to %s at %s failed", self._what, address.text, exc_info=task.exception())
            self.pause(address)

    def _leaves(self, address: Address) -> bool:
        """It is attended to already, needs no attention, or pauses."""
        if address in self._running or self._skip(address):
            return True
        return address in self._pauses and self._pauses[address][1] > asyncio.get_running_loop().time()
