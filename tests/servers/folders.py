"""The folders of tests and servers, in memory if possible.

All servers have their folders inside one folder for the whole test run. It is deleted when the run ends. The folders of
killed runs are deleted by later runs.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

#: The process of the run. Processes that it forks later use the same folder.
RUN = os.getpid()
#: Short, because the path of a Unix socket has at most about 100 characters.
PREFIX = "stepwell-"
#: A file system in memory. Waiting for a disk takes a third of the time of the suite, and no test cuts the power.
MEMORY = Path("/dev/shm")
#: Bytes. The tests need about a tenth of it.
ENOUGH = 4_000_000_000
#: Seconds. A run in another container has a process id that is not known here, and keeps its folder so long.
STALE = 600.0


def new(name: str) -> Path:
    """Return a new folder."""
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=run()))


@cache
def root() -> Path:
    """Return the folder for temporary files: in memory, unless ``TMPDIR`` names another one or memory is scarce."""
    if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ENOUGH:
        return MEMORY
    return Path(tempfile.gettempdir())


@cache
def run() -> Path:
    """Return the folder of this run."""
    folder = root() / f"{PREFIX}{RUN}"
    folder.mkdir(mode=0o700, exist_ok=True)
    for other in root().glob(f"{PREFIX}*"):
        if _stale(other):
            shutil.rmtree(other, ignore_errors=True)
    return folder


def _stale(folder: Path) -> bool:
    try:
        os.kill(int(folder.name.removeprefix(PREFIX)), 0)
    except ProcessLookupError:
        with suppress(OSError):
            return time.time() - folder.stat().st_mtime > STALE
    except (PermissionError, ValueError):
        pass
    return False


@contextmanager
def lock(name: str) -> Iterator[None]:
    """Let one process of this run at a time do something."""
    with (run() / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@atexit.register
def _remove() -> None:
    if os.getpid() == RUN:
        shutil.rmtree(root() / f"{PREFIX}{RUN}", ignore_errors=True)
