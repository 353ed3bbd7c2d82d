"""The SQLite storage: one file on one machine."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import unquote, urlsplit

from stepwell._secrets import quoted
from stepwell.errors import InvalidOption, StepwellError, StorageClosed, StorageUnavailable
from stepwell.options import check_choice
from stepwell.record import Address, Limits, Stored
from stepwell.storage.contract import Storage
from stepwell.storage.listing import ANY, Any_, Beside, Due, Page, Query, StateCount, Swept
from stepwell.storage.operations import Apply, Get, Operation, Result
from stepwell.storage.sqlite.connection import MEMORY, BusyError, Connection, SQLiteError, SQLiteFile
from stepwell.storage.sqlite.listing import Listing
from stepwell.storage.sqlite.long_read import LongRead
from stepwell.storage.sqlite.rows import Rows
from stepwell.storage.sqlite.thread import StorageThread
from stepwell.storage.sqlite.within import check_connection, run_in_savepoint
from stepwell.storage.transport.batch import elapsed
from stepwell.storage.urls import take_options

__all__ = ["SQLiteStorage"]

T = TypeVar("T")

#: How many records a sweep removes in one transaction.
SWEEP_BATCH = 100
#: ``erase(only_if_quick=True)`` does not rewrite a file with more bytes: that takes about 20 ms per megabyte.
QUICK_ERASE_BYTES = 8 * 1024 * 1024
#: Records with more bytes are read in the thread, so that they do not block the loop.
INLINE_BYTES = 128 * 1024
#: Options that may be given in a URL, and how they are parsed.
_URL_OPTIONS: dict[str, Callable[[str], Any]] = {"synchronous": str.upper, "patience": float, "sweep_every": float}

_NOT_A_FILE = (
    "this is not the URL of an SQLite file; use sqlite:///bot.db for a relative path, sqlite:////var/lib/bot.db for an "
    "absolute one, or sqlite:///:memory: for a storage without a file"
)


class SQLiteStorage(Storage):
    """Keeps records in an SQLite file, which any number of processes of one machine may use at once.

    ``synchronous``: with ``"FULL"``, acknowledged writes survive power loss; with ``"NORMAL"`` they survive the end of
    the process, and commits are faster. ``patience``: how many seconds to wait for the lock of another program.

    Example::

        async with SQLiteStorage("bot.db") as storage:
            await storage.set_data("my_bot", (42, 42), {"name": "Alice"})
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
        check_choice(synchronous, ("FULL", "NORMAL"), "synchronous is 'FULL' or 'NORMAL', not {}")
        if not path:
            raise InvalidOption("an SQLite storage needs the path of its file, or ':memory:'")
        # Absolute, so that it stays the same file if the program changes its working directory.
        self.path: str = path if path == MEMORY else str(Path(path).absolute())
        self._real_path = os.path.realpath(self.path)
        self.synchronous = synchronous
        self._now = clock or time.time
        self._thread: StorageThread | None = None
        self._file: SQLiteFile
        #: The same rules in the thread, and on the loop with the reader's connection.
        self._rows: Rows
        self._reader_rows: Rows
        self._listing: Listing
        self._long_reads: set[LongRead[Any]] = set()

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """Return a storage for ``sqlite:///bot.db`` (relative), ``sqlite:////var/lib/bot.db`` or ``sqlite:///:memory:``.

        The URL may end with options: ``?synchronous=NORMAL``, ``?patience=5``, ``?sweep_every=60``.
        """
        if not url.partition(":")[2].startswith("///"):
            raise InvalidOption(_NOT_A_FILE)
        rest, ours = take_options(url, _URL_OPTIONS, "an SQLite URL")
        parts = urlsplit(rest)
        path = unquote(parts.path)[1:]
        if parts.fragment or not path:
            raise InvalidOption(_NOT_A_FILE)
        if parts.query:
            unknown = parts.query.partition("=")[0]
            raise InvalidOption(f"an SQLite URL has no option {quoted(unknown)}; it has {', '.join(_URL_OPTIONS)}")
        return cls(path, **(ours | options))

    @property
    def location(self) -> str:
        return self.path

    @property
    def wake_key(self) -> Hashable:
        return self if self.path == MEMORY else ("sqlite", self._real_path)

    async def _open(self) -> None:
        thread = StorageThread("stepwell-sqlite")
        try:
            self._file = await thread.call(SQLiteFile, self.path, self.synchronous, self._patience)
        except BaseException:
            thread.end()
            raise
        self._thread = thread
        # A clock that was passed in also measures the leases.
        lease_clock = self.clock or elapsed
        self._rows = Rows(self._file.writer, lease_clock)
        self._reader_rows = Rows(self._file.reader, lease_clock, INLINE_BYTES)
        self._listing = Listing(self._file.writer.cursor().execute, self._rows, self._now)

    async def _close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is None or thread.forked:
            # A forked process must not touch its parent's connections, not even to close them.
            return
        for long_read in list(self._long_reads):
            await long_read.stop()
        try:
            await thread.call(self._file.close)
        finally:
            thread.end()

    # Operations

    def perform(self, operation: Operation) -> Coroutine[Any, Any, Any]:
        """Run one operation; its error is raised.

        Operations go through the lane: a batch has one commit, and so one wait for the disk. A read runs on the loop:
        it does not wait for the disk, and takes less time than a switch to the thread and back.
        """
        if isinstance(operation, Get) and self.loop is not None and self.loop is asyncio._get_running_loop():
            return self._read_or_wait(operation)
        return super().perform(operation)

    async def _read_or_wait(self, get: Get) -> Any:
        found = self._read_inline(get)
        return await super().perform(get) if found is None else found[0]

    def _read_inline(self, get: Get) -> tuple[Stored | None] | None:
        """Read on the loop; ``None`` if that has to wait or failed. The thread then waits, or raises the error."""
        file = self._file
        if file.memory and not self._idle:
            return None
        try:
            file.check()
            return (self._reader_rows.get(get, self._now()),)
        except (SQLiteError, StepwellError):
            return None

    async def run(self, operations: Sequence[Operation]) -> list[Result]:
        """Run a batch of the lane in the thread."""
        kinds = set(map(type, operations))
        if kinds == {Get}:
            # Reads do not wait for the lock of another process.
            return await self._read(partial(self._do, operations))
        return await self._write(partial(self._do, operations), durable=Apply in kinds)

    async def run_within(
        self, connection: Any, operations: Sequence[Operation], *, topic: str | None = None
    ) -> list[Result]:
        if self.loop is not asyncio.get_running_loop():
            await self.ensure_open()
        check_connection(connection, self._real_path)
        rows = Rows(connection, self._rows.lease_clock)
        work = partial(run_in_savepoint, connection, lambda: rows.run(operations, self._now()))
        try:
            # It may wait for the lock of another transaction. Workers find the run when they poll next.
            return await asyncio.to_thread(work)
        except BusyError as error:
            raise StorageUnavailable(
                f"another transaction writes to {self.path}, so nothing was written; begin yours with BEGIN IMMEDIATE, "
                "and let it wait with connection.set_busy_timeout(10_000)",
                sent=False,
                final=True,
            ) from error
        except SQLiteError as error:
            raise self._file.problem(error) from error

    def _do(self, operations: Sequence[Operation]) -> list[Result]:
        # The clock is read inside the transaction, so that times grow in the order of the commits.
        return self._rows.run(operations, self._now())

    async def _write(self, work: Callable[[], T], *, durable: bool) -> T:
        """Do some work in the thread, in one transaction."""
        thread, file = self._opened_thread(), self._file
        try:
            result: T = await thread.call(partial(file.write, work, durable=durable))
            return result
        finally:
            if file.wants_checkpoint:
                self._start_checkpoint()

    async def _read(self, work: Callable[[], T]) -> T:
        """Do some work in the thread, on one snapshot."""
        result: T = await self._opened_thread().call(self._file.read, work)
        return result

    def _start_checkpoint(self) -> None:
        if self._thread is not None:
            self._file.wants_checkpoint = False
            self._thread.call(self._file.checkpoint)

    @property
    def _idle(self) -> bool:
        return self._thread is not None and self._thread.pending == 0

    def _opened_thread(self) -> StorageThread:
        if self._thread is None:
            raise StorageClosed
        return self._thread

    # Lists, sweeps and erasing

    async def page(self, query: Query, after: Any, limit: int) -> Page:
        return await self._list(Listing.page, query, after, limit)

    def position(self, address: Address) -> Any:
        return address.key

    async def counts(self, *, oldest: bool = False) -> list[StateCount]:
        count = Listing.oldest if oldest else Listing.counts
        if self.loop is not asyncio.get_running_loop():
            await self.ensure_open()
        if self._file.memory:
            return await self._list(count)

        def read(connection: Connection) -> list[StateCount]:
            rows = Rows(connection, self._rows.lease_clock)
            return count(Listing(connection.cursor().execute, rows, self._now))

        # Not in the storage's thread: with a million records it takes 0.1 s, or seconds with ``oldest``.
        long_read = LongRead(self._file, read)
        self._long_reads.add(long_read)
        try:
            return await long_read.run()
        finally:
            self._long_reads.discard(long_read)

    async def beside(self, address: Address) -> Beside:
        return await self._list(Listing.beside, address)

    async def namespaces(self) -> list[str]:
        return await self._list(Listing.namespaces)

    async def traces(self, namespace: str, tag: str, *, limit: int = 500) -> list[Address]:
        return await self._list(Listing.traces, namespace, tag, limit)

    async def due(
        self,
        namespace: str,
        *,
        before: float | None = None,
        limit: int = 100,
        after: Due | None = None,
        flow: str | Any_ | Sequence[str] | None = ANY,
    ) -> list[Due]:
        return await self._list(Listing.due, namespace, before, limit, after, flow)

    async def queued(self, namespace: str, name: str | Sequence[str], *, limit: int = 100) -> list[Address]:
        return await self._list(Listing.queued, namespace, name, limit)

    async def queues(self, namespace: str, *, prefix: str = "", after: str = "", limit: int = 100) -> list[str]:
        return await self._list(Listing.queues, namespace, prefix, after, limit)

    async def _list(self, work: Callable[..., T], *args: Any) -> T:
        if self.loop is not asyncio.get_running_loop():
            await self.ensure_open()
        return await self._read(partial(work, self._listing, *args))

    async def sweep(self, limit: int = 1000) -> Swept:
        expired: list[tuple[Address, str | None]] = []
        removed = 0
        if self.loop is not asyncio.get_running_loop():
            await self.ensure_open()
        while removed < limit:
            most = min(SWEEP_BATCH, limit - removed)
            swept = await self._write(partial(self._listing.sweep, most), durable=False)
            expired += swept.expired
            removed += swept.removed
            if swept.removed < most:
                break
        return Swept(expired, removed)

    async def settings(self) -> dict[str, Any]:
        if self.loop is not asyncio.get_running_loop():
            await self.ensure_open()
        found: dict[str, Any] = await self._opened_thread().call(self._file.settings, self._rows.lease_clock())
        return {"backend": "sqlite", "synchronous": self.synchronous, **found}

    async def erase(self, *, only_if_quick: bool = False) -> bool:
        """Rewrite the file without the remains of removed and overwritten records; see ``Storage.erase``.

        This needs memory and disk space for a copy of the file. Meanwhile the file can be read but not written.
        """
        if self.loop is not asyncio.get_running_loop():
            await self.ensure_open()
        most = QUICK_ERASE_BYTES if only_if_quick else None
        erased: bool = await self._opened_thread().call(self._file.erase, most)
        return erased
