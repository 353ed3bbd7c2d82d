"""Programs of the system that tests need, installed on first use if permitted."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path


@contextmanager
def lock() -> Iterator[None]:
    """Let one process at a time install programs: apt-get fails while another one runs."""
    with (Path(tempfile.gettempdir()) / f"stepwell-install-{os.geteuid()}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@cache
def found(name: str, package: str) -> str | None:
    """Return the path of a program, or ``None``. Root installs its Debian package if it is missing."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    with lock():
        if shutil.which(name, path=path) is None and os.geteuid() == 0 and shutil.which("apt-get"):
            command = ["apt-get", "install", "--yes", "--no-install-recommends", package]
            print(f"installing {package}: {' '.join(command)}")
            environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
            with suppress(subprocess.TimeoutExpired):
                for each in (["apt-get", "update", "--quiet"], command):
                    subprocess.run(each, capture_output=True, check=False, env=environment, timeout=300)
    # Not resolved: Debian's redis-server is a link, and the program checks its own name.
    return shutil.which(name, path=path)


def program(name: str, package: str) -> str:
    """Return the path of a program that a test needs."""
    path = found(name, package)
    if path is None:
        raise RuntimeError(f"this test needs {name}; run: sudo apt-get install {package}")
    return path
