"""A server process that never outlives the test run."""

from __future__ import annotations

import atexit
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1

#: Hypothesis seeds the default generator, and then all processes of the tests would choose the same ports.
_CHOOSE = random.SystemRandom()


def free_port(*, also: int = 0) -> int:
    """Return a free port outside the range of outgoing connections.

    ``also``: the port so much higher is free too.
    """
    while True:
        port = _CHOOSE.randrange(15_000, 30_000 - also)
        try:
            for number in {port, port + also}:
                with socket.socket() as sock:
                    sock.bind(("127.0.0.1", number))
        except OSError:
            continue
        return port


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """One server: started, stopped, paused and killed by its own id only."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=_die_with_parent,
                start_new_session=True,
            )
        self.log = log
        atexit.register(self.kill)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child.poll() is None

    def pause(self) -> None:
        os.kill(self._child.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._child.pid, signal.SIGCONT)

    def kill(self) -> None:
        if self.running:
            self._child.kill()
        self._child.wait()
        atexit.unregister(self.kill)
