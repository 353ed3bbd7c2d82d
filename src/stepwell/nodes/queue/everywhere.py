"""The limit of a flow over all workers: one record for each flow names the runs that may run now.

A worker adds its runs before it starts them, and removes its entries when they have ended or parked. The entry of a
worker that has died names a run that is not running any more, or one whose next worker takes the entry over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from stepwell.codec.values import conform
from stepwell.errors import Busy, LeaseLost, StepwellError, StoredDataError
from stepwell.nodes.run.notices import wake_workers
from stepwell.nodes.run.reading import read_run
from stepwell.record import DAY, RATES, RUNS, Address
from stepwell.slot import Slot

if TYPE_CHECKING:
    from stepwell.storage import Storage

__all__ = ["Everywhere"]

logger: logging.Logger = logging.getLogger(__name__)

#: Seconds before a limit that is used up is read again, if no notice comes before.
PAUSE = 0.5
#: The same if there are places left, but another worker is about to start the runs that were found.
SHORT_PAUSE = 0.05
#: Seconds for which an entry counts whose run has not started yet.
STARTING = 10.0

#: The worker of each run, and when it has added the run, by the run's encoded key.
_Entries = dict[str, tuple[str, float]]


class Everywhere:
    """The limit of one flow over all workers, as one worker sees it."""

    def __init__(self, storage: Storage, flow: str, count: int, indexes: Collection[str]) -> None:
        self._storage = storage
        self._flow = flow
        self._count = count
        self._indexes = tuple(indexes)
        #: When runs may be free to start again, in loop time.
        self.free_at: float = 0.0
        self._name = storage.ids()
        #: The runs whose entries this worker has taken over from another one.
        self._taken_over: set[str] = set()
        self._ended: set[str] = set()
        self._returning: asyncio.Task[None] | None = None

    def _slot(self) -> Slot:
        return Slot(self._storage, RATES, (self._flow, "everywhere"), wait=2.0, lease=5.0)

    async def take(self, wanted: list[Address]) -> list[Address]:
        """Return those of the wanted runs that may start now. If some may not, ``free_at`` is in the future."""
        loop = asyncio.get_running_loop()
        if not wanted or loop.time() < self.free_at:
            return []
        try:
            async with self._slot() as slot:
                entries = _entries(slot.data.get("runs", {}))
                if len(entries) + len(wanted) > self._count:
                    entries = await self._running(entries, slot.now)
                others = {key: at for key, (name, at) in entries.items() if name != self._name}
                starting = {key for key, at in others.items() if at > slot.now - STARTING}
                got = [each for each in wanted if each.key in entries and each.key not in starting]
                self._taken_over.update(each.key for each in got if each.key in others)
                new = [each for each in wanted if each.key not in entries]
                got += new[: max(self._count - len(entries), 0)]
                full = len(entries) + len(new) > self._count
                entries |= {each.key: (self._name, slot.now) for each in got}
                slot.data = {
                    "runs": {key: list(entry) for key, entry in entries.items()},
                    "waiting": full or bool(slot.data.get("waiting")),
                }
                await slot.commit(expiry=DAY, force=True)
        except (Busy, LeaseLost):
            self.free_at = loop.time() + 0.1
            return []
        except StoredDataError as error:
            # The record expires by itself. Other flows go on.
            logger.warning("flow %r starts no runs, because its limit cannot be read: %s", self._flow, error)
            self.free_at = loop.time() + STARTING
            return []
        if len(got) < len(wanted):
            self.free_at = loop.time() + (PAUSE if full else SHORT_PAUSE)
        # They may be running again before the entries of their last time were removed.
        self._ended.difference_update(each.key for each in got)
        return got

    async def _running(self, entries: _Entries, now: float) -> _Entries:
        """Return the entries without those whose runs do not run."""
        old = [key for key, (_, at) in entries.items() if at < now - STARTING]
        runs = await asyncio.gather(*(read_run(self._storage, Address(self._namespace, key)) for key in old))
        gone = {key for key, run in zip(old, runs, strict=True) if run is None or run.table["status"] != "running"}
        return {key: entry for key, entry in entries.items() if key not in gone}

    @property
    def _namespace(self) -> str:
        return self._storage.address(RUNS, "-").namespace

    def give_back(self, address: Address, *, served: bool) -> None:
        """Let another run start, because this one has ended or was not started here."""
        if address.key in self._taken_over:
            self._taken_over.discard(address.key)
            if not served:
                # The worker before still runs it.
                return
        self._ended.add(address.key)
        if self._returning is None or self._returning.done():
            self._returning = asyncio.get_running_loop().create_task(self._give_back(), name="stepwell-limit")

    async def _give_back(self) -> None:
        while self._ended:
            ended, waiting = set(self._ended), False
            try:
                async with self._slot() as slot:
                    entries = _entries(slot.data.get("runs", {}))
                    ended &= self._ended
                    waiting = bool(slot.data.get("waiting"))
                    slot.data = {
                        "runs": {
                            key: [name, at]
                            for key, (name, at) in entries.items()
                            if key not in ended or name != self._name
                        }
                    }
                    await slot.commit(expiry=DAY)
            except StepwellError as error:
                # Entries of runs that do not run are removed later.
                logger.debug("the limit of flow %r was not updated: %s", self._flow, error)
            self._ended -= ended
            if waiting:
                self.free_at = 0.0
                for index in self._indexes:
                    wake_workers(self._storage, index)

    async def close(self) -> None:
        """Wait until the ends of all runs are written."""
        if self._returning is not None:
            await asyncio.wait({self._returning})


def _entries(stored: Any) -> _Entries:
    """Return the stored entries; a damaged record has none."""
    if conform(stored, _Entries)[1] is not None:
        return {}
    return {key: (name, at) for key, (name, at) in stored.items()}
