"""The playground's side of the reports from the bot's process: machines, records, and answers to requests."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
from collections.abc import Callable
from itertools import count
from typing import Any

__all__ = ["ReportServer"]

#: The longest line in either direction.
LONGEST_LINE = 4 * 1024 * 1024
#: Seconds to wait for an answer of the bot's process, and for its connection.
TIMEOUT, START_TIMEOUT = 5.0, 20.0


class ReportServer:
    """Listens on loopback for the bot's process, which authenticates with a secret."""

    def __init__(self, on_report: Callable[[dict[str, Any]], None]) -> None:
        self._on_report = on_report
        self._secret = secrets.token_urlsafe(24)
        self._server: asyncio.Server | None = None
        self._port = 0
        self._connections: dict[asyncio.StreamWriter, asyncio.Task[Any] | None] = {}
        #: Connections that answer requests.
        self._listening: set[asyncio.StreamWriter] = set()
        self._requests: dict[int, asyncio.Future[Any]] = {}
        self._ids = count(1)

    @property
    def address(self) -> str:
        """The address for the reporter: ``host:port:secret``."""
        return f"127.0.0.1:{self._port}:{self._secret}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=LONGEST_LINE)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = [task for task in self._connections.values() if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def connected(self, is_running: Callable[[], bool]) -> None:
        """Wait until the bot's process answers requests, for some seconds after its start."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_TIMEOUT):
                while not self._listening and is_running():
                    await asyncio.sleep(0.02)

    async def ask(self, what: dict[str, Any]) -> list[Any]:
        """Send a request to every machine of the bot's process, and return the answers that arrive in time."""
        waiting = [self._request(writer, what) for writer in list(self._listening)]
        answers = await asyncio.gather(*waiting)
        return [answer for answer in answers if answer is not None]

    async def _request(self, writer: asyncio.StreamWriter, what: dict[str, Any]) -> Any:
        number = next(self._ids)
        self._requests[number] = answered = asyncio.get_running_loop().create_future()
        writer.write(json.dumps({**what, "id": number}).encode() + b"\n")
        try:
            async with asyncio.timeout(TIMEOUT):
                return await answered
        except TimeoutError:
            # The process is busy or has ended; the page keeps the last state.
            return None
        finally:
            del self._requests[number]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first = json.loads(await reader.readline() or b"{}")
            if not hmac.compare_digest(str(first.get("secret", "")).encode(), self._secret.encode()):
                return
            self._connections[writer] = asyncio.current_task()
            if first.get("listens", True):
                self._listening.add(writer)
            while line := await reader.readline():
                report = json.loads(line)
                if report["kind"] != "answer":
                    self._on_report(report)
                elif (answered := self._requests.get(report["id"])) is not None and not answered.done():
                    answered.set_result(report["answer"])
        except (ConnectionError, ValueError, asyncio.CancelledError):
            # A killed bot may leave an incomplete line.
            pass
        finally:
            self._connections.pop(writer, None)
            self._listening.discard(writer)
            writer.close()
