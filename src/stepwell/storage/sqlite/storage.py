"""One file on one machine: the durable default. It survives kill -9 and, with ``FULL``, power loss."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from stepwell.errors import InvalidOption, OutcomeUnknown, StepwellError, StorageClosed, StorageUnavailable
from stepwell.record import Address, Limits
from stepwell.storage.contract import Due, Page, Query, Storage, Swept
from stepwell.storage.operations import Apply, Get, Operation, Result
from stepwell.storage.sqlite.connection import MEMORY, SQLiteError, SQLiteFile
from stepwell.storage.sqlite.listing import Listing
from stepwell.storage.sqlite.rows import Rows
from stepwell.storage.sqlite.thread import StorageThread

__all__ = ["SQLiteStorage"]

T = TypeVar("T")

#: How much a sweep removes before it lets others write.
SWEEP_AT_ONCE = 100
#: Files with more bytes are written anew by ``erase`` only if it may take its time: it takes about 20 ms a megabyte.
QUICK = 8 * 1024 * 1024
#: Records with more bytes are read in the thread: reading one in the loop's thread would hold up everything else.
LARGE = 128 * 1024


def _uptime() -> float:
    """Seconds since the machine was started, the same in all of its processes. Setting the time leaves it alone."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


_NOT_A_FILE = (
    "this is not the URL of an SQLite file: sqlite:///bot.db is relative to where the program runs, "
    "sqlite:////var/lib/bot.db is absolute, sqlite:///:memory: keeps nothing"
)


class SQLiteStorage(Storage):
    """Keeps records in an SQLite file, which any number of processes of one machine may use at once.

    ``synchronous="FULL"``: what was acknowledged survives power loss. ``"NORMAL"`` survives the end of
    the process only, and is quicker. ``patience``: how long to wait for another program's lock.
    """

    def __init__(
        self,
        path: str,
        *,
        synchronous: str = "FULL",
        limits: Limits | None = None,
        clock: Callable[[], float] | None = None,
        ids: Callable[[], str] | None = None,
        sweep_every: float | None = 60.0,
        patience: float = 10.0,
    ) -> None:
        super().__init__(limits=limits, clock=clock, ids=ids, sweep_every=sweep_every, patience=patience)
        if synchronous not in ("FULL", "NORMAL"):
            raise InvalidOption(f"synchronous is 'FULL' or 'NORMAL', not {synchronous!r}")
        if not path:
            raise InvalidOption("an SQLite storage needs the path of its file, or ':memory:'")
        # Made absolute now: a program that changes its folder later means the same file.
        self.path = path if path == MEMORY else str(Path(path).absolute())
        self.synchronous = synchronous
        self._now = clock or time.time
        self._thread: StorageThread | None = None
        self._file: SQLiteFile
        self._rows: Rows
        self._reading: Rows
        self._listing: Listing
        self._crowded = False
        #: Where the last write went.
        self._last_address: Address | None = None

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """``sqlite:///bot.db`` (relative), ``sqlite:////var/lib/bot.db``, ``sqlite:///:memory:``.

        ``?synchronous=NORMAL``, ``?patience=5`` and ``?sweep_every=60`` may follow.
        """
        if not url.partition(":")[2].startswith("///"):
            raise InvalidOption(_NOT_A_FILE)
        parts = urlsplit(url)
        path = unquote(parts.path)[1:]
        if parts.fragment or not path:
            raise InvalidOption(_NOT_A_FILE)
        return cls(path, **{**_url_options(parts.query), **options})

    async def _open(self) -> None:
        thread = StorageThread("stepwell-sqlite")
        try:
            file = await thread.call(lambda: SQLiteFile(self.path, self.synchronous, self._patience))
        except BaseException:
            thread.end()
            raise
        self._thread, self._file = thread, file
        # An injected clock is the only one there is.
        lease_clock = _uptime if self.clock is None else self._now
        self._rows = Rows(file.writer, lease_clock)
        self._reading = Rows(file.reader, lease_clock)
        self._reading.most = LARGE
        self._listing = Listing(file.writer.cursor().execute, self._rows)

    async def _close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is None or thread.forked:
            # A forked process must not touch its parent's connections, not even to close them.
            return
        try:
            await thread.call(self._file.close)
        finally:
            thread.end()

    async def run(self, operations: Sequence[Operation]) -> list[Result]:
        if all(type(operation) is Get for operation in operations):
            # They wait for no writer of another process, not even for one that was stopped in the middle of a commit.
            return await self._snapshot(lambda now: self._do(operations, now))
        # Who holds what may be forgotten by a machine that crashes: nobody holds anything then.
        durable = any(type(operation) is Apply for operation in operations)
        results = None if durable else self._at_once(operations)
        if results is None:
            results = await self._write(lambda now: self._do(operations, now), durable)
            self._keep_small()
        self._crowded = len(operations) > 1
        return results

    def _do(self, operations: Sequence[Operation], now: float) -> list[Result]:
        do = self._rows.do
        return [do(operation, now) for operation in operations]

    def perform(self, operation: Operation) -> Coroutine[Any, Any, Any]:
        # In a crowd all are better off together: one that went ahead would split the next commit in two.
        if type(operation) is Apply:
            last, self._last_address = self._last_address, operation.address
            if last == operation.address and not self._crowded:
                return self._apply_alone(operation)
            return super().perform(operation)
        if self._crowded and type(operation) is not Get:
            return super().perform(operation)
        return self._perform_at_once(operation)

    async def _apply_alone(self, apply: Apply) -> Any:
        """The only one that writes, such as a run, goes straight to the thread: a lane turns the loop twice more."""
        if self._loop is not asyncio.get_running_loop() or not self._nobody_ahead():
            return await super().perform(apply)
        try:
            (result,) = await self._write(lambda now: self._do((apply,), now), durable=True)
        except StorageUnavailable as error:
            if error.sent:
                raise OutcomeUnknown(apply.address.text, str(error)) from error
            raise
        finally:
            self._keep_small()
        if isinstance(result, StepwellError):
            raise result
        return result

    async def _perform_at_once(self, operation: Operation) -> Any:
        if self._loop is not asyncio.get_running_loop():
            await self.ensure_open()
        results = None
        if isinstance(operation, Get):
            results = self._read(operation)
        elif self._nobody_ahead():
            results = self._at_once((operation,))
        if results is None:
            return await super().perform(operation)
        if isinstance(results[0], StepwellError):
            raise results[0]
        return results[0]

    def _read(self, get: Get) -> list[Result] | None:
        if self._file.memory and not self._idle():
            return None
        try:
            self._file.check()
            return [self._reading.get(get, self._now())]
        except (SQLiteError, StepwellError):
            # Whatever is in the way, the thread can wait for it, or finds the words.
            return None

    def _at_once(self, operations: Sequence[Operation]) -> list[Result] | None:
        """Claims do not wait for the disk: with nobody ahead of them, a hop to the thread would cost more."""
        if not self._idle() or self._file.restarts:
            return None
        self._rows.most = LARGE
        try:
            results = self._file.write(lambda: self._do(operations, self._now()), durable=False, wait=False)
        except (SQLiteError, StepwellError):
            return None
        finally:
            self._rows.most = None
        self._keep_small()
        return results

    def _idle(self) -> bool:
        return self._thread is not None and self._thread.pending == 0

    def _nobody_ahead(self) -> bool:
        lane = self._lanes.get(None)
        return self._idle() and (lane is None or lane.idle)

    def _keep_small(self) -> None:
        if self._thread is not None and self._file.wants_checkpoint():
            self._thread.start(self._file.checkpoint)

    async def page(self, query: Query, after: Any, limit: int) -> Page:
        return await self._look(lambda now: self._listing.page(query, after, limit, now))

    async def namespaces(self) -> list[str]:
        return await self._look(lambda now: self._listing.namespaces())

    async def traces(self, namespace: str, tag: str, *, limit: int = 500) -> list[Address]:
        return await self._look(lambda now: self._listing.traces(namespace, tag, limit))

    async def due(
        self, namespace: str, *, before: float | None = None, limit: int = 100, after: Due | None = None
    ) -> list[Due]:
        return await self._look(lambda now: self._listing.due(namespace, before, limit, after, now))

    async def sweep(self, limit: int = 1000) -> Swept:
        expired: list[tuple[Address, str | None]] = []
        removed = 0
        if self._loop is not asyncio.get_running_loop():
            await self.ensure_open()
        while removed < limit:
            most = min(SWEEP_AT_ONCE, limit - removed)
            swept = await self._write(partial(self._listing.sweep, most), durable=False)
            expired += swept.expired
            removed += swept.removed
            if swept.removed < most:
                break
        return Swept(expired, removed)

    async def erase(self, *, only_if_quick: bool = False) -> bool:
        """Write the file anew, without what removed and overwritten records have left in it; see ``Storage.erase``.

        Needs memory and free disk space for a copy of the file. Others cannot write meanwhile, but can read.
        """
        if self._loop is not asyncio.get_running_loop():
            await self.ensure_open()
        most = QUICK if only_if_quick else None
        return await self._opened_thread().call(lambda: self._file.erase(most))

    async def _write(self, work: Callable[[float], T], durable: bool) -> T:
        thread = self._opened_thread()
        # The clock is read under the lock: times then grow in the order of the commits.
        return await thread.call(lambda: self._file.write(lambda: work(self._now()), durable=durable))

    async def _look(self, work: Callable[[float], T]) -> T:
        if self._loop is not asyncio.get_running_loop():
            await self.ensure_open()
        return await self._snapshot(work)

    async def _snapshot(self, work: Callable[[float], T]) -> T:
        return await self._opened_thread().call(lambda: self._file.read(lambda: work(self._now())))

    def _opened_thread(self) -> StorageThread:
        if self._thread is None:
            raise StorageClosed
        return self._thread


def _url_options(query: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _URL_OPTIONS:
            raise InvalidOption(f"an SQLite URL has no option {name!r}; it has {', '.join(sorted(_URL_OPTIONS))}")
        try:
            options[name] = _URL_OPTIONS[name](value)
        except ValueError:
            raise InvalidOption(f"{name} in an SQLite URL is a number of seconds") from None
    return options


_URL_OPTIONS: dict[str, Callable[[str], Any]] = {"synchronous": str.upper, "patience": float, "sweep_every": float}
