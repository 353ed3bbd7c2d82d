"""The connections to an SQLite file: opening, transactions, checkpoints and errors.

Only this module imports apsw; see docs/decisions/010.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar
from weakref import WeakSet

import apsw

from stepwell.errors import DamagedStorage, StepwellError, StorageFull, StorageUnavailable, UsageError
from stepwell.storage.sqlite.schema import prepare
from stepwell.storage.sqlite.wal import Ignored, ignored_frames
from stepwell.storage.transport.outage import OutageLog

__all__ = ["MEMORY", "BusyError", "Connection", "SQLiteError", "SQLiteFile", "has_wal_reset_bug", "is_network"]

logger: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")
Connection = apsw.Connection
SQLiteError = apsw.Error
BusyError = apsw.BusyError
MEMORY: Final = ":memory:"
_NORMAL, _FULL = 1, 2
#: An update writes a few whole pages, so they are small. Existing files keep their page size.
PAGE_SIZE: Final = 1024
#: A WAL of this many pages is copied into the file; one of eight times as many is also truncated.
CHECKPOINT_PAGES: Final = 16_000
#: A WAL with this many durable commits is copied too: a growing file is slower to sync than an overwritten one.
CHECKPOINT_COMMITS: Final = 250
#: After half as many commits, the WAL is copied once its end is this many pages before the end of its file.
_NEAR_END: Final = 32
#: apsw drops a prepared statement after this many other calls, so this is more than the calls of one batch. 512 is the
#: largest size that apsw has.
CACHED_STATEMENTS: Final = 512
#: File systems whose locks or shared memory SQLite cannot rely on.
_NETWORK = {"9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"}
_NETWORK |= {"ocfs2", "smb2", "smb3", "smbfs", "fuse.glusterfs", "fuse.sshfs", "fuse.rclone", "fuse.s3fs"}
MOUNTS = "/proc/self/mounts"
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


#: The open files of this process, and those that were open when it was forked: it inherits SQLite's lock table.
_OPEN: WeakSet[SQLiteFile] = WeakSet()


class SQLiteFile:
    """The two connections to one file: ``writer`` for the storage's thread, ``reader`` for reads on the loop."""

    def __init__(self, path: str, synchronous: str, patience: float) -> None:
        self.path = path
        self.memory: bool = path == MEMORY
        #: Pages in the WAL after the last commit of this connection.
        self.wal_pages: int = 0
        #: The WAL has grown enough to be copied into the file.
        self.wants_checkpoint: bool = False
        #: Durable commits since the WAL was last copied into the file.
        self._commits = 0
        #: Pages of the WAL's file, as far as known.
        self._wal_length = 0
        #: A WAL with more pages than this is near the end of its file. Infinite if the file grows with each commit.
        self._near_end: float = math.inf
        self._patience = patience
        self._until = 0.0
        self._checkpoint_at = CHECKPOINT_PAGES
        name = path.replace("%", "%%")
        self._outage = OutageLog(
            logger,
            f"checkpoint of {name} failed: %s; its WAL keeps growing until a later checkpoint succeeds",
            f"checkpoints of {name} succeed again, after %.0f s",
        )
        self._durable = _FULL if synchronous == "FULL" else _NORMAL
        self._level = -1
        #: Frames behind a damaged one in the WAL, when the file was opened.
        self._ignored = Ignored()
        self._identity: tuple[int, int] | None = None
        self._pid = os.getpid()
        if not self.memory:
            _create(path)
            found = Path(path).stat()
            self._identity = found.st_dev, found.st_ino
            if any(file._identity == self._identity and file._pid != self._pid for file in list(_OPEN)):
                raise UsageError(
                    f"{path} was open when this process was forked, and SQLite's locks are lost in a fork; close "
                    "the storage before forking, or start processes with the methods spawn or forkserver"
                )
        try:
            self.writer: Connection = apsw.Connection(
                path, flags=apsw.SQLITE_OPEN_READWRITE, statementcachesize=CACHED_STATEMENTS
            )
        except apsw.Error as error:
            raise self.problem(error) from error
        try:
            self._prepare()
            self.reader: Connection = self.writer if self.memory else self.new_reader()
        except apsw.Error as error:
            # It reads the error of the system from the open connection.
            problem = self.problem(error)
            self.writer.close()
            raise problem from error
        except BaseException:
            self.writer.close()
            raise
        _OPEN.add(self)

    def close(self) -> None:
        """Close the connections. The last connection of all processes copies the WAL into the file."""
        if self.reader is not self.writer:
            self.reader.close()
        self._until = time.monotonic() + self._patience
        self.writer.close()
        _OPEN.discard(self)

    # Transactions

    def write(self, work: Callable[[], T], *, durable: bool, retry: bool = True) -> T:
        """Do some work in one transaction. If the disk is full, it may be done a second time.

        A commit that is not ``durable`` survives a crash of the process, but perhaps not of the machine.
        """
        self.check()
        self._until = time.monotonic() + self._patience
        writer, committing = self.writer, False
        level = self._durable if durable else _NORMAL
        try:
            if level != self._level:
                self._set_level(level)
            writer.execute("BEGIN IMMEDIATE")
            result = work()
            committing = True
            writer.execute("COMMIT")
        except BaseException as error:
            problem = self.problem(error, committing=committing) if isinstance(error, apsw.Error) else error
            self._roll_back()
            # The file may still have room for the pages of the WAL. A checkpoint then frees the WAL.
            if isinstance(problem, StorageFull) and retry and self.checkpoint(cut=True):
                return self.write(work, durable=durable, retry=False)
            if problem is error:
                raise
            raise problem from error
        if durable:
            self._commits += not self.memory
            self.check(written=True)
        if (
            self.wal_pages >= self._checkpoint_at
            or self._commits >= CHECKPOINT_COMMITS
            or (self._commits * 2 > CHECKPOINT_COMMITS and self.wal_pages > self._near_end)
        ):
            self.wants_checkpoint = True
        return result

    def read(self, work: Callable[[], T]) -> T:
        """Read on one snapshot, with the writer's connection."""
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
        # SQLite's own handler sleeps up to 100 ms; a batch of another process takes a few.
        if time.monotonic() >= self._until:
            return False
        time.sleep(random.uniform(0.0002, 0.0004 * min(calls + 1, 10)))
        return True

    # The WAL

    def checkpoint(self, *, cut: bool = False) -> bool:
        """Copy the WAL into the file; with ``cut``, truncate it. A failed checkpoint is retried after more writes."""
        # While readers overlap, the WAL cannot restart. Truncating waits for a gap between them.
        cut = cut or self.wal_pages >= 8 * CHECKPOINT_PAGES
        mode = apsw.SQLITE_CHECKPOINT_TRUNCATE if cut else apsw.SQLITE_CHECKPOINT_PASSIVE
        self._until = time.monotonic() + min(self._patience, 1.0)
        self._commits = 0
        self.wants_checkpoint = False
        try:
            pages, copied = self.writer.wal_checkpoint(mode=mode)
        except apsw.BusyError:
            # Another process runs a checkpoint.
            pages, copied = self.wal_pages, -1
        except apsw.Error as error:
            self._outage.failed(error)
            pages, copied = self.wal_pages, -1
        else:
            self._outage.worked()
        complete = pages == copied
        self.wal_pages = 0 if complete else pages
        self._checkpoint_at = CHECKPOINT_PAGES + self.wal_pages
        self._wal_length = 0 if complete and cut else max(self._wal_length, pages)
        # Only a WAL that was copied completely is overwritten. Any other grows, whether it is copied early or not.
        overwritten = complete and self._wal_length > _NEAR_END
        self._near_end = self._wal_length - _NEAR_END if overwritten else math.inf
        return complete

    def erase(self, most: int | None) -> bool:
        """Rewrite the file without its free space and truncate the WAL; return whether both were done.

        ``secure_delete`` is not enough: pages that were split or merged keep copies of the moved rows. A file with more
        than ``most`` bytes is not rewritten.
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

    def settings(self, lease_now: float) -> dict[str, Any]:
        """Return facts about SQLite and the file. ``lease_now``: the time on the clock of the leases."""
        execute = self.writer.execute
        longest = execute(
            "SELECT until - ?1, namespace, key FROM lease WHERE until > ?1 AND until <= ?1 + length "
            "ORDER BY until DESC LIMIT 1",
            (lease_now,),
        ).fetchone()
        facts: dict[str, Any] = {
            "version": apsw.sqlite_lib_version(),
            "wal_reset_bug": has_wal_reset_bug(tuple(map(int, apsw.sqlite_lib_version().split(".")))),
            "schema": execute("PRAGMA user_version").get,
            "journal_mode": execute("PRAGMA journal_mode").get,
            "longest_lease": longest and dict(zip(("seconds", "namespace", "key"), longest, strict=True)),
        }
        if not self.memory:
            path = Path(self.path)
            wal = path.with_name(f"{path.name}-wal")
            facts |= {
                "file_system": _filesystem(self.path),
                "network": is_network(_filesystem(self.path)),
                "bytes": path.stat().st_size,
                "wal_ignored": self._ignored._asdict(),
                "wal_bytes": wal.stat().st_size if wal.exists() else 0,
                "free_bytes": shutil.disk_usage(path.parent).free,
                "others_can_read": bool(path.stat().st_mode & 0o077),
            }
        return facts

    # Errors

    def check(self, *, written: bool = False) -> None:
        """Raise ``StorageUnavailable`` if the file was deleted or replaced: further writes would be lost."""
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
        """Return the library's error for an SQLite error. Only a failed COMMIT may have written something."""
        path = self.path
        if isinstance(error, apsw.FullError):
            return StorageFull(f"the disk of {path} is full; nothing was written; free some space and try again")
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
        # The statements are fixed: if SQLite does not understand one in an open file, the stored schema is damaged.
        if isinstance(error, apsw.CorruptError) or (isinstance(error, apsw.SQLError) and self in _OPEN):
            return DamagedStorage(path, str(error))
        if isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError | apsw.AuthError | apsw.CantOpenError):
            return _unwritable(path, error)
        if isinstance(error, apsw.IOError):
            if _system_errno(error, self) in _NO_ROOM:
                return StorageFull(f"the disk of {path} is full; nothing was written; free some space and try again")
            return StorageUnavailable(
                f"{path} cannot be read or written ({error}); check the disk", sent=committing, final=True
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
        # secure_delete overwrites removed rows with zeros; the cost is not measurable.
        safety = ("trusted_schema = 0", "cell_size_check = 1", "secure_delete = 1")
        for pragma in (*safety, "temp_store = 2", "cache_size = -16384", f"page_size = {PAGE_SIZE}"):
            writer.execute(f"PRAGMA {pragma}")
        if self.memory:
            prepare(writer.execute, self.path)
            return
        if writer.readonly("main"):
            raise _unwritable(self.path)
        # Check an existing file before changing it: it may belong to another program.
        tables = writer.execute("SELECT count(*) FROM sqlite_schema").get
        if not has_wal_reset_bug(version):
            # Earlier versions cannot tell how much of the WAL they read.
            self._check_wal()
        if tables:
            roots = "SELECT count(rootpage) - count(DISTINCT rootpage) FROM sqlite_schema WHERE rootpage > 0"
            if writer.execute(roots).get:
                # SQLite does not notice this, and a write would damage both.
                raise DamagedStorage(self.path, "two tables or indexes begin at the same page")
            prepare(writer.execute, self.path)
        # SQLite does not call the busy handler when the journal mode is changed.
        while True:
            try:
                writer.execute("PRAGMA journal_mode = WAL")
                break
            except apsw.BusyError:
                if not self._busy(10):
                    raise
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

    def _check_wal(self) -> None:
        """Warn if the WAL is damaged, before new writes overwrite what SQLite ignores of it."""
        counts = []
        # Another process may write while the WAL is read, but it does not write the same frames twice.
        for _ in range(2):
            pages, _ = self.writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
            page_size = self.writer.execute("PRAGMA page_size").get
            counts.append(ignored_frames(f"{self.path}-wal", page_size, max(pages, 0)))
            if not counts[-1].commits:
                return
        if counts[0] == counts[1]:
            self._ignored = counts[0]
            logger.warning(
                "%s-wal is damaged: SQLite ignores the %d intact frames behind the damage, with %d commits, so "
                "acknowledged writes are probably lost; check the disk, and restore a backup if you need them",
                self.path,
                *self._ignored,
            )

    def new_reader(self) -> Connection:
        """Open another connection, which only reads."""
        reader = apsw.Connection(self.path, flags=apsw.SQLITE_OPEN_READWRITE)
        for pragma in ("query_only = 1", "trusted_schema = 0", "cell_size_check = 1", "cache_size = -4096"):
            reader.execute(f"PRAGMA {pragma}")
        return reader


def has_wal_reset_bug(version: tuple[int, ...]) -> bool:
    """Return whether this SQLite may damage a file in WAL mode that several connections write."""
    return (3, 7, 0) <= version < (3, 51, 3)


def is_network(filesystem: str) -> bool:
    """Return whether a file system of this type may be on another machine."""
    return filesystem in _NETWORK


def _filesystem(path: str) -> str:
    """Return the type of the file system that a file is on, or an empty string if it is unknown."""
    try:
        mounts = Path(MOUNTS).read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ""
    resolved = Path(path).resolve()
    best, found = -1, ""
    for mount in mounts:
        _, point, kind, *_ = mount.split(" ")
        folder = point.replace("\\040", " ")
        # Of several mounts on one folder the last one counts.
        if len(folder) >= best and resolved.is_relative_to(folder):
            best, found = len(folder), kind
    return found


def _create(path: str) -> None:
    """Create the file, readable by its owner only, unless it exists."""
    if Path(path).is_dir():
        raise StorageUnavailable(f"{path} is a folder; give the path of a file in it", sent=False, final=True)
    try:
        # SQLite gives its -wal and -shm files the same mode.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        pass
    except FileNotFoundError as error:
        folder = Path(path).parent
        problem = f"the folder {folder} does not exist; create it first"
        if folder.is_dir():
            # Its file system has no files of users, such as that of /proc.
            problem = f"no file can be created in the folder {folder}; give the path of a file in another one"
        raise StorageUnavailable(problem, sent=False, final=True) from error
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise StorageFull(f"the disk of {path} is full; free some space and try again") from error
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
    # There is no connection if opening it has failed.
    return file.writer.system_errno if hasattr(file, "writer") else 0
