"""The bot's process: starts, watches, kills and restarts it, with its child processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, cast

from stepwell.botfile import watched_files

__all__ = ["BotProcess"]

#: Seconds between two checks of the bot's files.
CHECK_EVERY = 0.3
#: The most lines of output that are kept, and the most characters of each.
MAX_LINES, MAX_LENGTH = 100, 2000
#: Seconds to read the last output of a process that has ended.
DRAIN = 0.5


class Subprocess(asyncio.SubprocessProtocol):
    """A process: the lines that it prints, and its end.

    ``asyncio.subprocess.Process`` is not used: its ``wait()`` also waits until every child of the process has closed
    the output.
    """

    def __init__(self, said: Callable[[str], None]) -> None:
        self._said = said
        self._rest = b""
        self._transport: asyncio.SubprocessTransport | None = None
        self.exited: asyncio.Event = asyncio.Event()
        #: The output has ended.
        self.ended: asyncio.Event = asyncio.Event()
        #: All pipes are closed.
        self.closed: asyncio.Event = asyncio.Event()

    @property
    def transport(self) -> asyncio.SubprocessTransport:
        assert self._transport is not None
        return self._transport

    def kill(self) -> None:
        """Kill the process and its children, also children that have outlived it. On Windows, children stay."""
        if self.transport.is_closing():
            # Its id may belong to another process by now.
            return
        if sys.platform != "win32":
            # macOS does not permit a signal to a group that has only ended processes.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.transport.get_pid(), signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            self.transport.kill()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._say(line)
        # As many bytes as MAX_LENGTH characters may have.
        self._rest = rest[: 4 * MAX_LENGTH]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            if self._rest:
                self._say(self._rest)
            self._rest = b""
            self.ended.set()

    def process_exited(self) -> None:
        self.exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()

    def _say(self, line: bytes) -> None:
        self._said(line.decode(errors="replace").rstrip()[:MAX_LENGTH])


class BotProcess:
    """Runs one file with ``runner`` in a separate process, and restarts it when the file changes."""

    def __init__(
        self,
        path: Path,
        changed: Callable[[], None],
        said: Callable[[str], None] | None = None,
        *,
        killed: Callable[[int | None, str], None] | None = None,
        ended: Callable[[], None] | None = None,
    ) -> None:
        self.path = path
        #: Called before a start, except the first, with the id of the killed process and the reason.
        self._killed = killed
        #: Called when the process has ended by itself.
        self._ended = ended
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
        self._process: Subprocess | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        return None if self._process is None or self.status != "running" else self._process.transport.get_pid()

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
            spawn = asyncio.get_running_loop().subprocess_exec
            _, process = await spawn(
                lambda: Subprocess(self._heard),
                sys.executable, "-u", "-m", "stepwell.playground.bot_process.runner", str(self.path),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
                env={**os.environ, **self._env},
                # On POSIX, the bot gets its own process group, so that its children can be killed with it. Ctrl-C in
                # the terminal then reaches the playground only, which kills the group.
                start_new_session=True,
            )  # fmt: skip
            self._process = process
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
        process.kill()
        await process.exited.wait()

    async def _attend(self, process: Subprocess) -> None:
        await process.exited.wait()
        # A child of the process may hold the output open.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.ended.wait(), DRAIN)
        # Without the process, its children may never end: the workers of a process pool wait for it.
        process.kill()
        code = process.transport.get_returncode()
        process.transport.close()
        await process.closed.wait()
        if self._process is process:
            self.status, self.exit_code = ("failed", code) if code else ("ended", code)
            if self._ended is not None:
                self._ended()
            self._changed()

    def _heard(self, line: str) -> None:
        self.lines.append(line)
        if self._said is not None:
            self._said(line)
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
