"""The limit of a flow over all workers: one record for each flow names the runs that may run now.

A worker adds its runs before it starts them, and removes its entries when they have ended or parked. The entry of a
worker that has died names a run that is not running any more, or one whose next worker takes the entry over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from stepwell._secrets import quoted
from stepwell.codec.values import conform
from stepwell.errors import RecordExists, StepwellError, StoredDataError, VersionChanged
from stepwell.nodes.run.notices import wake_workers
from stepwell.nodes.run.reading import read_run
from stepwell.record import DAY, RATES, RUNS, Address, Change, Stored
from stepwell.storage.operations import Apply, Get, Guard

if TYPE_CHECKING:
    from stepwell.storage import Storage

__all__ = ["Everywhere"]

logger: logging.Logger = logging.getLogger(__name__)

#: How often a write is tried again after another worker was faster.
ATTEMPTS = 10
#: Seconds before a limit that is used up is read again, if no notice comes before.
PAUSE = 0.5
#: The same if there are places left, but another worker is about to start the runs that were found.
SHORT_PAUSE = 0.05
#: Seconds between two checks, while a limit is used up, whether the runs of all entries are running.
CHECK_EVERY = 2.0
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
        self._address = storage.address(RATES, (flow, "everywhere"))
        #: When runs may be free to start again, in loop time.
        self.free_at: float = 0.0
        self._notices = 0
        self._name = storage.ids()
        #: The runs whose entries this worker has taken over from another one.
        self._taken_over: set[str] = set()
        #: When to look again for entries whose runs do not run, in loop time.
        self._check_at = 0.0
        self._ended: set[str] = set()
        self._returning: asyncio.Task[None] | None = None

    async def take(self, wanted: list[Address]) -> list[Address]:
        """Return those of the wanted runs that may start now. If some may not, ``free_at`` is in the future."""
        loop = asyncio.get_running_loop()
        if not wanted or loop.time() < self.free_at:
            return []
        notices = self._notices
        for _ in range(ATTEMPTS):
            stored, entries, waiting = await self._read()
            before, now = dict(entries), (self._storage.clock or time.time)()
            if len(entries) + len(wanted) > self._count and loop.time() >= self._check_at:
                self._check_at = loop.time() + CHECK_EVERY
                entries = await self._running(entries, now)
            others = {key: at for key, (name, at) in entries.items() if name != self._name}
            starting = {key for key, at in others.items() if at > now - STARTING}
            got = [each for each in wanted if each.key in entries and each.key not in starting]
            new = [each for each in wanted if each.key not in entries]
            got += new[: max(self._count - len(entries), 0)]
            full = len(entries) + len(new) > self._count
            entries = entries | {each.key: (self._name, now) for each in got}
            same = entries == before and waiting >= full
            if same or await self._write(stored, entries, waiting=waiting or full):
                break
        else:
            # Other workers were faster each time.
            self.free_at = loop.time() + SHORT_PAUSE
            return []
        # A place may have become free since the record was read.
        if len(got) < len(wanted) and notices == self._notices:
            self.free_at = loop.time() + (PAUSE if full else SHORT_PAUSE)
        self._taken_over.update(each.key for each in got if each.key in others)
        # They may be running again before the entries of their last time were removed.
        self._ended.difference_update(each.key for each in got)
        return got

    def look_again(self) -> None:
        """Read the limit as soon as a run is found, because a run may have ended in another worker."""
        self.free_at = 0.0
        self._notices += 1

    async def _read(self) -> tuple[Stored | None, _Entries, bool]:
        """Return the record, its entries, and whether workers wait for a place. A damaged record has no entries."""
        stored: Stored | None = await self._storage.perform(Get(self._address))
        if stored is None:
            return None, {}, False
        try:
            data = self._storage.seal(self._address).data(stored.fields)
        except StoredDataError as error:
            logger.warning("the limit of flow %s is damaged, so it counts anew: %s", quoted(self._flow), error)
            return stored, {}, False
        return stored, _entries(data.get("runs", {})), bool(data.get("waiting"))

    async def _write(self, stored: Stored | None, entries: _Entries, *, waiting: bool) -> bool:
        """Write the entries if nobody has written meanwhile, and return whether they were written."""
        storage, seal = self._storage, self._storage.seal(self._address)
        data = {"runs": {key: list(entry) for key, entry in entries.items()}, "waiting": waiting}
        change = Change(storage.ids(), replace=stored is not None, set=seal.fields(data), expiry=DAY, limit=seal.limit)
        guard = Guard(absent=True) if stored is None else Guard(version=stored.version)
        try:
            await storage.perform(Apply(self._address, change, guard))
        except (RecordExists, VersionChanged):
            return False
        return True

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
                while True:
                    stored, entries, waiting = await self._read()
                    ended &= self._ended
                    left = {key: entry for key, entry in entries.items() if key not in ended or entry[0] != self._name}
                    if left == entries or await self._write(stored, left, waiting=False):
                        break
            except StepwellError as error:
                # Entries of runs that do not run are removed later.
                logger.debug("the limit of flow %s was not updated: %s", quoted(self._flow), error)
            self._ended -= ended
            if waiting:
                self.look_again()
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
