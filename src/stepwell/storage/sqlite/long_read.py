"""Long reads of an SQLite file, each on a connection and in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Event
from typing import Any, Generic, TypeVar

from stepwell.errors import StorageClosed
from stepwell.storage.sqlite.connection import Connection, SQLiteError, SQLiteFile
from stepwell.storage.sqlite.thread import StorageThread
from stepwell.storage.transport.lane import retrieve

__all__ = ["LongRead"]

T = TypeVar("T")

#: The steps of SQLite's virtual machine between two checks whether the read was stopped: less than a millisecond.
STEPS = 10_000


class LongRead(Generic[T]):
    """One read that takes long. Writes do not wait for it, and it ends soon after it was stopped."""

    def __init__(self, file: SQLiteFile, work: Callable[[Connection], T]) -> None:
        self._file = file
        self._work = work
        self._stopped = Event()
        self._job: asyncio.Future[Any] | None = None

    async def run(self) -> T:
        """Do the work on one snapshot; raise ``StorageClosed`` if it was stopped."""
        thread = StorageThread("stepwell-sqlite-read")
        self._job = thread.call(self._read)
        # After a cancellation nobody awaits it.
        self._job.add_done_callback(retrieve)
        try:
            result: T = await asyncio.shield(self._job)
            return result
        finally:
            self._stopped.set()
            thread.end()

    async def stop(self) -> None:
        """Stop the read and wait for its end."""
        self._stopped.set()
        if self._job is not None:
            await asyncio.wait([self._job])

    def _read(self) -> T:
        self._file.check()
        try:
            connection = self._file.new_reader()
            try:
                connection.set_progress_handler(self._stopped.is_set, STEPS)
                connection.execute("BEGIN")
                return self._work(connection)
            finally:
                connection.close()
        except SQLiteError as error:
            if self._stopped.is_set():
                raise StorageClosed from error
            raise self._file.problem(error) from error
