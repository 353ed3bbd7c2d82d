"""The processes that use a storage, for operators.

A process writes a small record every few seconds. It expires soon after the last write, so that the storage has only
the records of processes that are running, however they end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any, Literal

from stepwell.errors import StepwellError
from stepwell.record import PROCESSES, Change, OpenedHead, Place
from stepwell.storage.contract import Storage
from stepwell.storage.operations import Apply

__all__ = ["Presence"]

logger: logging.Logger = logging.getLogger(__name__)

#: Seconds until the first write, between two writes, and until a record expires.
FIRST, EVERY, KEPT = 2.0, 20.0, 60.0


class Presence:
    """Tells operators that a bot or a worker is running here.

    ``counts`` returns how many updates or runs it has handled, how many of them have failed, and the like, by name.
    """

    def __init__(
        self,
        storage: Storage,
        kind: Literal["bot", "worker"],
        names: Sequence[str],
        counts: Callable[[], Mapping[str, float]],
    ) -> None:
        self._storage = storage
        self._kind = kind
        self._names = list(names)
        self._counts = counts
        self._task: asyncio.Task[None] | None = None
        #: When the record was written last, on the monotonic clock.
        self.wrote_at: float | None = None

    def start(self) -> None:
        """Start writing. Without a sweep nothing would remove the records, so nothing is written."""
        if self._task is None and type(self._storage).sweep is not Storage.sweep:
            self._task = asyncio.get_running_loop().create_task(self._write_all(), name="stepwell-presence")

    async def stop(self) -> None:
        """Stop writing."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def _write_all(self) -> None:
        storage = self._storage
        address = storage.address(PROCESSES, storage.ids())
        seal = storage.seal(address)
        process: dict[str, Any] = {"names": self._names, "host": socket.gethostname()[:255], "pid": os.getpid()}
        head = seal.head(OpenedHead(Place(self._kind, None)))
        began = since = monotonic()
        counted = self._counts()
        await asyncio.sleep(FIRST * storage.rng.uniform(0.5, 1))
        while True:
            now, counts = monotonic(), self._counts()
            minutes = (now - since) / 60
            process["age"] = now - began
            process |= {name: round((count - counted[name]) / minutes, 1) for name, count in counts.items()}
            try:
                fields = seal.fields(process)
                await storage.perform(Apply(address, Change(storage.ids(), head=head, set=fields, expiry=KEPT)))
                self.wrote_at = monotonic()
            except StepwellError as error:
                # Others report that the storage is unavailable.
                logger.debug("the record of this process was not written: %s", error)
            since, counted = now, counts
            await asyncio.sleep(EVERY * storage.rng.uniform(0.8, 1))
