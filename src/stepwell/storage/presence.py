"""The processes that use a storage, for operators.

A process writes a small record every few seconds. It expires soon after the last write, so that the storage has only
the records of processes that are running, however they end. Once a minute it writes a second record, with its counts of
each minute of the last hour. That one is kept for an hour, and tells whether the process was stopped or has died.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import monotonic, time
from typing import Any, Final, Literal

from stepwell.errors import StepwellError
from stepwell.record import PROCESSES, Address, Change, OpenedHead, Place
from stepwell.storage.contract import Storage
from stepwell.storage.operations import Apply

__all__ = ["HISTORY", "Presence"]

logger: logging.Logger = logging.getLogger(__name__)

#: Seconds until the first write, between two writes, and until a record expires.
FIRST, EVERY, KEPT = 2.0, 20.0, 60.0
#: The flow of the records with counts by minute, how many minutes they have, and for how many seconds they are kept.
HISTORY: Final = "history"
MINUTES, HISTORY_KEPT = 60, 3700.0
#: The most seconds for the last write of a process that stops.
LAST_WRITE = 2.0


class Presence:
    """Tells operators that a bot or a worker is running here.

    ``counts`` returns how many updates or runs it has handled, how many of them have failed, and the like, by name.
    ``about`` is written as it is, such as the limits of a worker.
    """

    def __init__(
        self,
        storage: Storage,
        kind: Literal["bot", "worker"],
        names: Sequence[str],
        counts: Callable[[], Mapping[str, float]],
        *,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self._storage = storage
        self._kind = kind
        self._names = list(names)
        self._counts = counts
        self._about = dict(about or {})
        self._history: _History | None = None
        self._task: asyncio.Task[None] | None = None
        #: When the record was written last, on the monotonic clock.
        self.wrote_at: float | None = None

    def start(self) -> None:
        """Start writing. Without a sweep nothing would remove the records, so nothing is written."""
        if self._task is None and type(self._storage).sweep is not Storage.sweep:
            self._task = asyncio.get_running_loop().create_task(self._write_all(), name="stepwell-presence")

    async def stop(self) -> None:
        """Stop writing, after a last write that says so."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait({task})
        if self._history is not None and self.wrote_at is not None:
            with contextlib.suppress(StepwellError, TimeoutError):
                async with asyncio.timeout(LAST_WRITE):
                    self._history.add(self._counts())
                    gone = Apply(self._history.presence, Change(self._storage.ids(), delete=True, forget=True))
                    await asyncio.gather(self._history.write(ended=True), self._storage.perform(gone))

    async def _write_all(self) -> None:
        storage = self._storage
        address = storage.address(PROCESSES, storage.ids())
        seal = storage.seal(address)
        process: dict[str, Any] = {"names": self._names, "host": socket.gethostname()[:255], "pid": os.getpid()}
        head = seal.head(OpenedHead(Place(self._kind, None)))
        began = since = monotonic()
        counted = self._counts()
        history = self._history = _History(
            storage, address, {"kind": self._kind, **process, "of": self._names}, counted
        )
        process |= self._about
        await asyncio.sleep(FIRST * storage.rng.uniform(0.5, 1))
        while True:
            now, counts = monotonic(), self._counts()
            minutes = (now - since) / 60
            process["age"] = now - began
            process |= {name: round((count - counted[name]) / minutes, 1) for name, count in counts.items()}
            is_new_minute = history.add(counts)
            try:
                if is_new_minute:
                    await history.write()
                fields = seal.fields(process)
                await storage.perform(Apply(address, Change(storage.ids(), head=head, set=fields, expiry=KEPT)))
                self.wrote_at = monotonic()
            except StepwellError as error:
                # Others report that the storage is unavailable.
                logger.debug("the record of this process was not written: %s", error)
            since, counted = now, counts
            await asyncio.sleep(EVERY * storage.rng.uniform(0.8, 1))


class _History:
    """The counts of a process in each minute of the last hour."""

    def __init__(
        self, storage: Storage, presence: Address, about: dict[str, Any], counted: Mapping[str, float]
    ) -> None:
        self._storage = storage
        #: The record of the process that is running.
        self.presence: Address = presence
        self._address = storage.address(PROCESSES, storage.ids())
        # Without "names", earlier releases do not take it for a process.
        self._about = {name: value for name, value in about.items() if name != "names"} | {"presence": presence.key}
        self._began = self._clock()
        self._counted = counted
        self._rows: deque[list[float]] = deque(maxlen=MINUTES)

    def add(self, counts: Mapping[str, float]) -> bool:
        """Add what was counted since the last call; return whether it is the first of its minute."""
        minute = int(self._clock() // 60)
        is_new = not self._rows or self._rows[-1][0] != minute
        if is_new:
            self._rows.append([minute, *[0.0] * len(counts)])
        row = self._rows[-1]
        for at, (name, count) in enumerate(counts.items(), 1):
            row[at] = round(row[at] + count - self._counted[name], 3)
        self._counted = counts
        return is_new

    async def write(self, *, ended: bool = False) -> None:
        """Write all minutes. The last one may not have ended."""
        rows = {"minutes": list(self._rows), "columns": list(self._counted), "began": self._began, "ended": ended}
        seal = self._storage.seal(self._address)
        head = seal.head(OpenedHead(Place(HISTORY, None)))
        change = Change(self._storage.ids(), head=head, set=seal.fields({**self._about, **rows}), expiry=HISTORY_KEPT)
        await self._storage.perform(Apply(self._address, change))

    def _clock(self) -> float:
        return (self._storage.clock or time)()
