"""An SQLite file: found, created, opened, watched, and its errors in our words.

The only module that imports apsw, which brings its own SQLite; see docs/decisions for why.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar
from weakref import WeakSet

import apsw

from stepwell.errors import DamagedStorage, StepwellError, StorageFull, StorageUnavailable, UsageError
from stepwell.storage.sqlite.schema import prepare

__all__ = ["MEMORY", "Connection", "SQLiteError", "SQLiteFile", "has_wal_reset_bug", "is_network"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
Connection = apsw.Connection
SQLiteError = apsw.Error
MEMORY: Final = ":memory:"
_NORMAL, _FULL = 1, 2
#: Small pages: an update touches a few of them, and each is written whole. Only new files have it.
PAGE_SIZE: Final = 1024
#: A WAL of so many pages is copied into the file, and one of eight times as many is also cut off.
CHECKPOINT_PAGES: Final = 16_000
#: So is one with so many durable commits: a file that grows is slower to sync than one that is written over.
CHECKPOINT_COMMITS: Final = 250
#: File systems whose locks or shared memory SQLite cannot rely on.
_NETWORK = {"9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"}
_NETWORK |= {"ocfs2", "smb2", "smb3", "smbfs", "fuse.glusterfs", "fuse.sshfs", "fuse.rclone", "fuse.s3fs"}
MOUNTS = "/proc/self/mounts"
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


#: What this process has open, or had open when it was forked: SQLite's own notes on files are inherited as well.
_OPEN: WeakSet[SQLiteFile] = WeakSet()


class SQLiteFile:
    """The connections to one file: ``writer`` for its thread, ``reader`` for point reads in the loop's thread."""

    def __init__(self, path: str, synchronous: str, patience: float) -> None:
        self.path = path
        self.memory = path == MEMORY
        #: Pages in the WAL after the last commit of this connection.
        self.wal_pages = 0
        #: The next write may be the first of a WAL that starts anew, which waits for the disk however it commits.
        self.restarts = True
        #: The WAL has grown enough to be copied into the file.
        self.wants_checkpoint = False
        #: Durable commits since the WAL was last copied into the file.
        self._commits = 0
        self._patience = patience
        self._until = 0.0
        self._checkpoint_at = CHECKPOINT_PAGES
        self._durable = _FULL if synchronous == "FULL" else _NORMAL
        self._level = -1
        self._identity: tuple[int, int] | None = None
        self._pid = os.getpid()
        if not self.memory:
            _find(path)
            found = Path(path).stat()
            self._identity = found.st_dev, found.st_ino
            if any(file._identity == self._identity and file._pid != self._pid for file in list(_OPEN)):
                raise UsageError(
                    f"{path} was open when this process was forked, and SQLite's locks do not survive that; close "
                    "the storage before forking, or start processes with the methods spawn or forkserver"
                )
        try:
            self.writer = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE, statementcachesize=200)
        except apsw.Error as error:
            raise self.problem(error) from error
        try:
            self._prepare()
            self.reader = self.writer if self.memory else self._reader()
        except apsw.Error as error:
            self.writer.close()
            raise self.problem(error) from error
        except BaseException:
            self.writer.close()
            raise
        _OPEN.add(self)

    def close(self) -> None:
        """Let go of the file. The last one to do so in any process copies the WAL into it."""
        if self.reader is not self.writer:
            self.reader.close()
        self._until = time.monotonic() + self._patience
        self.writer.close()
        _OPEN.discard(self)

    # Transactions

    def write(self, work: Callable[[], T], *, durable: bool, wait: bool = True) -> T:
        """Do some work in one transaction, all of it or nothing. It may be done twice, if there was no room first.

        What is not durable survives a crash of the process, but perhaps not of the machine. Without
        ``wait``, another process's lock is an error at once.
        """
        try:
            return self._attempt(work, durable, wait)
        except StorageFull:
            # What the WAL has to say may have room in the file, and then the WAL's own is free.
            if not wait or not self.checkpoint(cut=True):
                raise
        return self._attempt(work, durable, wait)

    def _attempt(self, work: Callable[[], T], durable: bool, wait: bool) -> T:
        self.check()
        self._until = time.monotonic() + self._patience if wait else 0.0
        writer, committing = self.writer, False
        level = self._durable if durable else _NORMAL
        try:
            if level != self._level:
                self._set_level(level)
            writer.execute("BEGIN IMMEDIATE")
            result = work()
            committing = True
            writer.execute("COMMIT")
        except apsw.Error as error:
            problem = self.problem(error, committing=committing)
            self._roll_back()
            raise problem from error
        except BaseException:
            self._roll_back()
            raise
        self.restarts = False
        if durable:
            self._commits += not self.memory
            self.check(written=True)
        if self.wal_pages >= self._checkpoint_at or self._commits >= CHECKPOINT_COMMITS:
            self.wants_checkpoint = True
        return result

    def read(self, work: Callable[[], T]) -> T:
        """Do some reading on one snapshot, with the writer's connection."""
        self.check()
        self._until = time.monotonic() + self._patience
        try:
            self.writer.execute("BEGIN")
            return work()
        except apsw.Error as error:
            raise self.problem(error) from error
        finally:
            self._roll_back()

    def _set_level(self, level: int) -> None:
        # SQLite may run a PRAGMA while compiling it, so it must not come from the statement cache.
        self.writer.execute(f"PRAGMA synchronous = {level}", can_cache=False)
        self._level = level

    def _roll_back(self) -> None:
        if self.writer.in_transaction:
            self.writer.execute("ROLLBACK")

    def _busy(self, calls: int) -> bool:
        # SQLite's own handler backs off to 100 ms; a batch of another process lasts a few.
        if time.monotonic() >= self._until:
            return False
        time.sleep(random.uniform(0.0002, 0.0004 * min(calls + 1, 10)))
        return True

    # The WAL

    def checkpoint(self, *, cut: bool = False) -> bool:
        """Copy the WAL into the file, and cut it off if asked to. What fails is tried again after some more writes."""
        # Where readers always overlap, the WAL never can start anew: then wait for a gap between them.
        cut = cut or self.wal_pages >= 8 * CHECKPOINT_PAGES
        mode = apsw.SQLITE_CHECKPOINT_TRUNCATE if cut else apsw.SQLITE_CHECKPOINT_PASSIVE
        self._until = time.monotonic() + min(self._patience, 1.0)
        self._commits = 0
        self.restarts, self.wants_checkpoint = True, False
        try:
            pages, copied = self.writer.wal_checkpoint(mode=mode)
        except apsw.BusyError:
            # Another process is at it.
            pages, copied = self.wal_pages, -1
        except apsw.Error as error:
            logger.warning("the WAL of %s could not be copied into it now (%s); it keeps growing", self.path, error)
            pages, copied = self.wal_pages, -1
        self.wal_pages = 0 if pages == copied else pages
        self._checkpoint_at = CHECKPOINT_PAGES + self.wal_pages
        return pages == copied

    def erase(self, most: int | None) -> bool:
        """Write the whole file anew, without its free space, and cut off the WAL; ``False`` if that is kept in use.

        ``secure_delete`` is not enough: pages that were split or joined keep copies of what was moved. A file with more
        than ``most`` bytes is not written anew, which gives ``False`` too.
        """
        if self.memory:
            return True
        self.check()
        if most is not None and Path(self.path).stat().st_size > most:
            self.checkpoint(cut=True)
            return False
        self._until = time.monotonic() + self._patience
        try:
            self._set_level(self._durable)
            self.writer.execute("VACUUM", can_cache=False)
        except apsw.Error as error:
            raise self.problem(error) from error
        return self.checkpoint(cut=True)

    def _committed(self, _: Any, __: str, pages: int) -> int:
        self.wal_pages = pages
        return 0

    # What may be wrong with it

    def check(self, *, written: bool = False) -> None:
        """Raise if the file at our path is not the one we opened: what we write would be lost with it."""
        if self._identity is None:
            return
        try:
            found = os.stat(self.path)  # noqa: PTH116 called twice for each commit
            if (found.st_dev, found.st_ino) == self._identity:
                return
        except OSError:
            pass
        raise StorageUnavailable(
            f"{self.path} was deleted or replaced while it was open; put it back, or close this storage "
            "and open it again",
            sent=written,
            final=True,
        )

    def problem(self, error: apsw.Error, *, committing: bool = False) -> StepwellError:
        """An error of SQLite's in our words. Anything but a failed COMMIT left nothing behind."""
        path = self.path
        if isinstance(error, apsw.FullError):
            return StorageFull(f"there is no room left for {path}; nothing was written, make room and go on")
        if isinstance(error, apsw.BusyError | apsw.LockedError):
            return StorageUnavailable(
                f"{path} has been locked by another program for {self._patience:g} s; nothing was written; "
                "look for a transaction left open, or wait longer with patience=...",
                sent=False,
                final=True,
            )
        if isinstance(error, apsw.NotADBError):
            return StorageUnavailable(
                f"{path} is not an SQLite database; give the path of one, or of a file that does not exist yet",
                sent=False,
                final=True,
            )
        if isinstance(error, apsw.CorruptError):
            return DamagedStorage(path, str(error))
        if isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError | apsw.AuthError | apsw.CantOpenError):
            return _unwritable(path, error)
        if isinstance(error, apsw.IOError):
            if _system_errno(error, self) in _NO_ROOM:
                return StorageFull(f"there is no room left for {path}; nothing was written, make room and go on")
            return StorageUnavailable(
                f"{path} cannot be read or written ({error}); look at the disk", sent=committing, final=True
            )
        return StorageUnavailable(f"SQLite failed on {path}: {error}", sent=committing, final=True)

    # Opening

    def _prepare(self) -> None:
        self._until = time.monotonic() + self._patience
        writer = self.writer
        writer.set_busy_handler(self._busy)
        version = tuple(map(int, apsw.sqlite_lib_version().split(".")))
        if has_wal_reset_bug(version):
            logger.warning(
                "SQLite %s can damage a file that several connections write (the WAL-reset bug, fixed in 3.51.3); "
                "install apsw from its wheels: pip install --only-binary apsw -U apsw",
                apsw.sqlite_lib_version(),
            )
        # With secure_delete, removed and overwritten texts are overwritten with zeros; that costs next to nothing.
        for pragma in (
            *("trusted_schema = 0", "cell_size_check = 1", "temp_store = 2", "cache_size = -16384"),
            "secure_delete = 1",
        ):
            writer.execute(f"PRAGMA {pragma}")
        writer.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        if self.memory:
            prepare(writer.execute, self.path)
            return
        if writer.readonly("main"):
            raise _unwritable(self.path)
        # Looked at before anything is changed: it may be somebody else's.
        if writer.execute("SELECT count(*) FROM sqlite_schema").get:
            prepare(writer.execute, self.path)
        self._insist(lambda: writer.execute("PRAGMA journal_mode = WAL").get)
        writer.set_wal_hook(self._committed)
        writer.execute(f"PRAGMA journal_size_limit = {4 * CHECKPOINT_PAGES * PAGE_SIZE}")
        prepare(writer.execute, self.path)
        filesystem = _filesystem(self.path)
        if is_network(filesystem):
            logger.warning(
                "%s is on a network file system (%s), whose locks SQLite cannot rely on: keep it on a local disk, "
                "or use Redis or PostgreSQL to share state between machines",
                self.path,
                filesystem,
            )

    def _insist(self, action: Callable[[], Any]) -> None:
        # Changing the journal mode does not ask the busy handler.
        while True:
            try:
                action()
            except apsw.BusyError:
                if not self._busy(10):
                    raise
            else:
                return

    def _reader(self) -> apsw.Connection:
        reader = apsw.Connection(self.path, flags=apsw.SQLITE_OPEN_READWRITE)
        for pragma in ("query_only = 1", "trusted_schema = 0", "cell_size_check = 1", "cache_size = -4096"):
            reader.execute(f"PRAGMA {pragma}")
        return reader


def has_wal_reset_bug(version: tuple[int, ...]) -> bool:
    """This SQLite may damage a file in WAL mode that several connections write."""
    return (3, 7, 0) <= version < (3, 51, 3)


def is_network(filesystem: str) -> bool:
    """A file system of this type may be on another machine."""
    return filesystem in _NETWORK


def _filesystem(path: str) -> str:
    """The type of the file system that a file is on; empty where that cannot be told."""
    try:
        mounts = Path(MOUNTS).read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ""
    place = Path(path).resolve()
    best, found = -1, ""
    for mount in mounts:
        _, point, kind, *_ = mount.split(" ")
        folder = point.replace("\\040", " ")
        # Of several mounts on one folder the last is on top.
        if len(folder) >= best and place.is_relative_to(folder):
            best, found = len(folder), kind
    return found


def _find(path: str) -> None:
    """Make the file, for its owner's eyes only, unless it is there."""
    place = Path(path)
    if place.is_dir():
        raise StorageUnavailable(f"{path} is a folder; give the path of a file in it", sent=False, final=True)
    try:
        # SQLite gives its -wal and -shm files the same mode.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        pass
    except FileNotFoundError as error:
        raise StorageUnavailable(
            f"the folder {place.parent} does not exist; create it first", sent=False, final=True
        ) from error
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise StorageFull(f"there is no room left for {path}; make room and go on") from error
        raise _unwritable(path, error) from error


def _unwritable(path: str, why: object = "") -> StorageUnavailable:
    if os.access(path, os.W_OK) and os.access(Path(path).parent, os.W_OK):
        return StorageUnavailable(f"{path} cannot be opened ({why})", sent=False, final=True)
    return StorageUnavailable(
        f"{path} cannot be written by this user; both the file and its folder must be writable, "
        "because SQLite keeps two more files beside it",
        sent=False,
        final=True,
    )


def _system_errno(error: apsw.Error, file: SQLiteFile) -> int:
    if getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHMSIZE:
        return errno.ENOSPC
    return file.writer.system_errno
