"""The bot's process: starts, watches, kills and restarts it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio import create_subprocess_exec as spawn
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from stepwell.botfile import watched_files

__all__ = ["BotProcess"]

#: Seconds between two checks of the bot's files.
CHECK_EVERY = 0.3
#: The most lines of output that are kept, and the most characters of each.
MAX_LINES, MAX_LENGTH = 100, 2000


class BotProcess:
    """Runs one file with ``runner`` in a separate process, and restarts it when the file changes."""

    def __init__(
        self,
        path: Path,
        changed: Callable[[], None],
        said: Callable[[str], None] | None = None,
        *,
        killed: Callable[[int | None, str], None] | None = None,
    ) -> None:
        self.path = path
        #: Called before a start, except the first, with the id of the killed process and the reason.
        self._killed = killed
        self._env: Mapping[str, str] = {}
        self._changed = changed
        #: Called with each line of the bot's output.
        self._said = said
        #: ``running``, ``failed`` (exit code not 0) or ``ended``.
        self.status: str = "ended"
        self.starts: int = 0
        self.exit_code: int | None = None
        #: The reason for the last start.
        self.why: str = ""
        self.lines: deque[str] = deque(maxlen=MAX_LINES)
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        return None if self._process is None or self.status != "running" else self._process.pid

    async def start(self, env: Mapping[str, str]) -> None:
        """Start the process with these environment variables added, and watch its files."""
        self._env = env
        await self.restart("started")
        self._watching = self._begin(self._watch())

    async def restart(self, why: str) -> None:
        """Kill the process as a crash would, and start it."""
        async with self._lock:
            pid = self.pid
            await self._kill()
            if self.starts and self._killed is not None:
                self._killed(pid, why)
            self.starts += 1
            self.why = why
            self._process = process = await spawn(
                sys.executable, "-u", "-m", "stepwell.playground.runner", str(self.path),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
                env={**os.environ, **self._env},
            )  # fmt: skip
            self.status, self.exit_code = "running", None
            self._begin(self._attend(process))
            self._changed()

    async def stop(self) -> None:
        """Kill the process and stop watching."""
        if self._watching is not None:
            self._watching.cancel()
        async with self._lock:
            await self._kill()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _kill(self) -> None:
        # Forgotten first, so that the end of a killed process is not shown as a failure.
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    async def _attend(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        assert process.stdin is not None
        while line := await _line(process.stdout):
            self.lines.append(line.decode(errors="replace").rstrip()[:MAX_LENGTH])
            if self._said is not None:
                self._said(self.lines[-1])
            self._changed()
        code = await process.wait()
        process.stdin.close()
        if self._process is process:
            self.status, self.exit_code = ("failed", code) if code else ("ended", code)
            self._changed()

    async def _watch(self) -> None:
        seen = watched_files(self.path)
        while True:
            await asyncio.sleep(CHECK_EVERY)
            now = watched_files(self.path)
            if now != seen:
                seen = now
                await self.restart("its file changed")

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _line(stream: asyncio.StreamReader) -> bytes:
    try:
        return await stream.readline()
    except ValueError:
        # The line is too long; continue with the next.
        return "…".encode()
