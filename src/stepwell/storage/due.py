"""What one worker does about records whose deadline has come: a task for each, and a pause after one that failed."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any

from stepwell.errors import StepwellError, StorageError
from stepwell.record import Address
from stepwell.storage.contract import Due, Storage

__all__ = ["DueTasks"]

logger = logging.getLogger(__name__)

#: Seconds between two looks.
TICK = 0.5
#: How many are attended to at the same time.
AT_ONCE = 32
PAGE = 200


class DueTasks:
    """Looks for what is due in a namespace and attends to it, each address once at a time.

    ``attend`` says whether it did anything, and calls ``pause`` for what it could not do: the pauses grow from
    the first to the longest, in seconds. ``what`` names the records in the log. With ``waits``, a look begins
    with all that is due, however long it must wait for room; otherwise the rest is left to the next look.
    ``skip`` tells what needs no attention, and takes up no room.
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
    ) -> None:
        self._storage = storage
        self._namespace = namespace
        self._attend = attend
        self._what = what
        self._waits = waits
        self._skip = skip
        self._first_pause, self._longest_pause = pauses
        self._looking: asyncio.Task[None] | None = None
        self._running: dict[Address, asyncio.Task[bool]] = {}
        #: Those that failed: how often, and not before when (loop time).
        self._pauses: dict[Address, tuple[int, float]] = {}

    def start(self) -> None:
        """Look again and again."""
        if self._looking is None:
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
            ready = [due.address for due in page if not self._pausing(due.address)]
            # Workers that look at the same page begin at different places.
            random.shuffle(ready)
            for address in ready:
                if address in self._running or self._skip(address):
                    continue
                while len(self._running) >= AT_ONCE:
                    if not self._waits:
                        return begun
                    await asyncio.wait(self._running.values(), return_when=asyncio.FIRST_COMPLETED)
                begun.append(self._begin(address))
            if len(page) < PAGE:
                break
        self._pauses = {address: pause for address, pause in self._pauses.items() if address in seen}
        return begun

    def pause(self, address: Address) -> None:
        """Leave an address alone for a while, longer each time."""
        times = self._pauses.get(address, (0, 0.0))[0]
        pause = min(self._first_pause * 2**times, self._longest_pause)
        self._pauses[address] = (times + 1, asyncio.get_running_loop().time() + pause)

    def unpause(self, address: Address) -> None:
        """It has succeeded: the next pause is a first one again."""
        self._pauses.pop(address, None)

    async def _look_again(self) -> None:
        while True:
            try:
                # What was begun is not waited for: what takes its time holds up its own key only.
                await self.look()
            except StorageError as error:
                # They wait in the storage: nothing is lost while it is away.
                logger.warning("%s cannot be read: %s", self._what, error)
            except StepwellError:
                logger.exception("%s are not looked after any more in this process", self._what)
                return
            await asyncio.sleep(TICK * random.uniform(0.8, 1.2))

    def _begin(self, address: Address) -> asyncio.Task[bool]:
        name = f"stepwell-{self._what} {address.key}"
        task = asyncio.get_running_loop().create_task(self._attend(address), name=name)
        self._running[address] = task
        task.add_done_callback(lambda _: self._running.pop(address, None))
        return task

    def _pausing(self, address: Address) -> bool:
        return address in self._pauses and self._pauses[address][1] > asyncio.get_running_loop().time()
