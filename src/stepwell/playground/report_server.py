"""The playground's end of what ``reporter`` says: machines, records, and answers to what was asked."""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from collections.abc import Callable
from itertools import count
from typing import Any

__all__ = ["ReportServer"]

LONGEST_LINE = 4 * 1024 * 1024
#: Seconds that a bot's process has to answer.
PATIENCE = 5.0


class ReportServer:
    """Listens on loopback for the bot's process, which proves with a secret that it is the one."""

    def __init__(self, told: Callable[[dict[str, Any]], None]) -> None:
        self._told = told
        self._secret = secrets.token_urlsafe(24)
        self._server: asyncio.Server | None = None
        self._port = 0
        self._connections: dict[asyncio.StreamWriter, asyncio.Task[Any] | None] = {}
        #: Those that answer.
        self._listening: set[asyncio.StreamWriter] = set()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._ids = count(1)

    @property
    def address(self) -> str:
        """What the reporter connects to: ``host:port:secret``."""
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

    async def ask(self, what: dict[str, Any]) -> list[Any]:
        """Ask every machine's loop of the bot's process; what those say that answer in time."""
        waiting = [self._ask(writer, what) for writer in list(self._listening)]
        answers = await asyncio.gather(*waiting)
        return [answer for answer in answers if answer is not None]

    async def _ask(self, writer: asyncio.StreamWriter, what: dict[str, Any]) -> Any:
        number = next(self._ids)
        self._asked[number] = answered = asyncio.get_running_loop().create_future()
        writer.write(json.dumps({**what, "id": number}).encode() + b"\n")
        try:
            async with asyncio.timeout(PATIENCE):
                return await answered
        except TimeoutError:
            # It is busy, or gone; the page goes on with what it knows.
            return None
        finally:
            del self._asked[number]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first = json.loads(await reader.readline() or b"{}")
            if not hmac.compare_digest(str(first.get("secret", "")).encode(), self._secret.encode()):
                return
            self._connections[writer] = asyncio.current_task()
            if first.get("listens", True):
                self._listening.add(writer)
            while line := await reader.readline():
                said = json.loads(line)
                if said["kind"] != "answer":
                    self._told(said)
                elif (answered := self._asked.get(said["id"])) is not None and not answered.done():
                    answered.set_result(said["answer"])
        except (ConnectionError, ValueError, asyncio.CancelledError):
            # A killed bot ends in the middle of a line.
            pass
        finally:
            self._connections.pop(writer, None)
            self._listening.discard(writer)
            writer.close()
