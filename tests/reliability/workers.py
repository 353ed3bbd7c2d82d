"""Starting, stopping, killing and reading worker processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class Worker:
    """One worker process."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid = pid
        self._log = log
        self._lines: list[list[Any]] = []
        self._read = 0

    def reported(self, what: str | None = None) -> list[list[Any]]:
        """Return the lines of its log, or only those that start with a word."""
        self._read_log()
        return [line for line in self._lines if what is None or line[0] == what]

    def _read_log(self) -> list[list[Any]]:
        """Return the new lines."""
        if not self._log.exists():
            return []
        with self._log.open() as log:
            log.seek(self._read)
            # A kill may have cut off the last line.
            text = log.read().rpartition("\n")[0]
        self._read += len(text.encode()) + 1 if text else 0
        new = [json.loads(line) for line in text.splitlines()]
        for line in new:
            assert line[0] != "failed", line[1]
        self._lines += new
        return new

    async def wait_for(self, what: str, *, timeout: float = 60.0) -> None:
        """Wait until it reports this word."""
        if self.reported(what):
            return
        try:
            async with asyncio.timeout(timeout):
                alive = True
                while all(line[0] != what for line in self._read_log()):
                    assert alive, f"it has ended without {what!r}: {self._lines[-5:]}"
                    await asyncio.sleep(0.005)
                    alive = self.alive()
        except TimeoutError:
            raise AssertionError(f"it has not reported {what!r} in {timeout:g} s, only {self._lines[-5:]}") from None

    async def kill(self) -> None:
        """Send SIGKILL, and wait until it has ended."""
        self.signal(signal.SIGKILL)
        await self.wait_ended()

    async def wait_ended(self, *, timeout: float = 60.0) -> None:
        """Wait until it has ended."""
        try:
            process = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(process, ended.set)
        try:
            async with asyncio.timeout(timeout):
                await ended.wait()
        finally:
            asyncio.get_running_loop().remove_reader(process)
            os.close(process)

    def alive(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)


class Workers:
    """A server process that forks workers, and has imported some modules for them."""

    def __init__(self, folder: Path, *modules: str) -> None:
        self._folder = folder
        self._numbers = count()
        self._started: list[Worker] = []
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.reliability.worker", "serve", *modules],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, role: str, url: str, **options: Any) -> Worker:
        """Start a process that runs a role on the storage at a URL."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        log = self._folder / f"worker-{next(self._numbers)}.log"
        self._server.stdin.write(json.dumps([role, url, str(log), options]) + "\n")
        self._server.stdin.flush()
        worker = Worker(int(self._server.stdout.readline()), log)
        self._started.append(worker)
        return worker

    def end_all(self) -> None:
        """Kill all running workers."""
        for worker in self._started:
            if worker.alive():
                worker.signal(signal.SIGKILL)
        self._started.clear()

    def close(self) -> None:
        self.end_all()
        self._server.communicate("", timeout=60)
