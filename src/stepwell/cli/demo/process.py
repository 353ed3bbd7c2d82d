"""The bot in a separate process, which the script can kill."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import Any

from stepwell import StepwellError
from stepwell.cli.demo.bot import make_router

__all__ = ["DemoProcess", "serve"]


class DemoProcess:
    """A process that reads one update a line and writes its calls, one line each."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, "-c", f"from {__name__} import serve; serve()"]
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
        self.pid: int = self._process.pid
        # Not as an argument: other users can see those, and a URL may contain a password.
        self._write(url)

    def handle(self, update: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the bot's calls for an update."""
        assert self._process.stdout is not None
        self._write(json.dumps(update))
        line = self._process.stdout.readline()
        if not line:
            raise StepwellError(f"the bot's process {self.pid} ended with exit code {self._process.wait()}")
        calls: list[dict[str, Any]] = json.loads(line)
        return calls

    def kill(self) -> int:
        """Kill the process without cleanup, and return its id."""
        with self._process:
            self._process.kill()
        return self.pid

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        # If the process has ended, reading the answer raises.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()


def serve() -> None:
    """Handle updates from stdin; runs in the process."""
    router = make_router(sys.stdin.readline().rstrip("\n"))
    for line in sys.stdin:
        print(json.dumps(router.handle_sync(json.loads(line))), flush=True)
