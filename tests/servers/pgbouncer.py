"""A real PgBouncer in transaction mode, from the system's package."""

from __future__ import annotations

import atexit
import shutil
import socket
import subprocess
import time
from functools import cache

from tests.servers import folders, postgres
from tests.servers.packages import program
from tests.servers.process import free_port


class PgBouncer:
    """A PgBouncer with few connections to its server, each used for one transaction at a time."""

    def __init__(self, server: postgres.PostgresServer, *, connections: int = 2, settings: str = "") -> None:
        self.folder = folders.new("pgbouncer")
        self.port = free_port()
        users = self.folder / "users.txt"
        users.write_text('"postgres" ""\n')
        config = self.folder / "pgbouncer.ini"
        config.write_text(
            f"""\
[databases]
* = host=127.0.0.1 port={server.port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = transaction
default_pool_size = {connections}
max_client_conn = 200
{settings}
"""
        )
        self.folder.chmod(0o755)
        self._log = self.folder / "log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*postgres.as_unprivileged_user(), program("pgbouncer", "pgbouncer"), config],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=postgres.die_with_us,
            )
        self._wait()

    def _wait(self) -> None:
        give_up = time.monotonic() + 20
        while time.monotonic() < give_up and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise RuntimeError(f"PgBouncer did not start:\n{self._log.read_text()[-2000:]}")

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@cache
def shared() -> PgBouncer:
    """Return the PgBouncer of the shared server."""
    bouncer = PgBouncer(postgres.shared())
    atexit.register(bouncer.stop)
    return bouncer


#: The startup parameters of the storage.
OUR_PARAMETERS = (
    "statement_timeout, lock_timeout, idle_in_transaction_session_timeout, default_transaction_isolation, jit, "
    "enable_seqscan, enable_bitmapscan, enable_hashjoin, enable_mergejoin, plan_cache_mode"
)


@cache
def lenient() -> PgBouncer:
    """Return a PgBouncer of the shared server that ignores the startup parameters of the storage."""
    bouncer = PgBouncer(postgres.shared(), connections=20, settings=f"ignore_startup_parameters = {OUR_PARAMETERS}")
    atexit.register(bouncer.stop)
    return bouncer
