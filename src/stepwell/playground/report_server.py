"""The playground's side of the reports from the bot's process: machines, records, and answers to requests."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import secrets
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

__all__ = ["ReportServer"]

logger: logging.Logger = logging.getLogger(__name__)

#: The longest line in either direction; a longer one ends the connection. A report has a record three times.
LONGEST_LINE = 64 * 1024 * 1024
#: Seconds to wait for an answer of the bot's process, and for its connection.
TIMEOUT, START_TIMEOUT = 5.0, 20.0


class _Request(NamedTuple):
    """A request to the bot's process that is not answered yet."""

    writer: asyncio.StreamWriter
    answered: asyncio.Future[Any]
    on_answer: Callable[[Any], None] | None


class ReportServer:
    """Listens on loopback for the bot's process, which authenticates with a secret."""

    def __init__(self, on_report: Callable[[dict[str, Any]], None], on_disconnect: Callable[[], None]) -> None:
        self._on_report = on_report
        #: Called after the last report of a process that has ended, or of all connections.
        self._on_disconnect = on_disconnect
        self._secret = secrets.token_urlsafe(24)
        self._server: asyncio.Server | None = None
        self._port = 0
        self._connections: dict[asyncio.StreamWriter, asyncio.Task[Any] | None] = {}
        #: Connections whose process has ended.
        self._forgotten: set[asyncio.StreamWriter] = set()
        #: Connections that answer requests.
        self._listening: set[asyncio.StreamWriter] = set()
        self._requests: dict[int, _Request] = {}
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

    def forget(self) -> None:
        """End all requests without an answer, and send no more to these connections, because their process has ended.

        Reports that it has sent are still read. A child of it may hold the connections open.
        """
        self._listening.clear()
        self._forgotten.update(self._connections)
        self._end_requests(list(self._requests))

    async def ask(self, what: dict[str, Any], on_answer: Callable[[Any], None] | None = None) -> list[Any]:
        """Send a request to every machine of the bot's process, and return the answers that arrive in time.

        ``on_answer`` is called with each answer as soon as it is read, also with a late one. Records in answers must be
        handled there: when this method returns, newer reports of the same record may have been handled.
        """
        waiting = [self._request(writer, what, on_answer) for writer in list(self._listening)]
        answers = await asyncio.gather(*waiting)
        return [answer for answer in answers if answer is not None]

    async def _request(
        self, writer: asyncio.StreamWriter, what: dict[str, Any], on_answer: Callable[[Any], None] | None
    ) -> Any:
        if writer not in self._listening:
            # The connection has ended meanwhile.
            return None
        number = next(self._ids)
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._requests[number] = _Request(writer, answered, on_answer)
        writer.write(json.dumps({**what, "id": number}).encode() + b"\n")
        # A busy process answers later; until then the page keeps the last state.
        await asyncio.wait([answered], timeout=TIMEOUT)
        return answered.result() if answered.done() else None

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first = json.loads(await reader.readline() or b"{}")
            if not isinstance(first, dict):
                # Another program has connected.
                return
            if not hmac.compare_digest(str(first.get("secret", "")).encode(), self._secret.encode()):
                return
            self._connections[writer] = asyncio.current_task()
            if first.get("listens", True):
                self._listening.add(writer)
            while line := await reader.readline():
                self._handle(json.loads(line))
        except (ConnectionError, ValueError, asyncio.CancelledError):
            # A killed bot may leave an incomplete line.
            pass
        finally:
            self._listening.discard(writer)
            self._end_requests([number for number, each in self._requests.items() if each.writer is writer])
            known = self._connections.pop(writer, None) is not None
            # A running process may have a connection for each of its event loops, and close one of them.
            if known and (writer in self._forgotten or not self._connections):
                self._on_disconnect()
            self._forgotten.discard(writer)
            writer.close()

    def _handle(self, report: dict[str, Any]) -> None:
        """Handle a report or an answer. An error is logged, because later reports must be shown."""
        try:
            if report["kind"] != "answer":
                self._on_report(report)
            elif (request := self._requests.pop(report["id"], None)) is not None:
                try:
                    if request.on_answer is not None and report["answer"] is not None:
                        request.on_answer(report["answer"])
                finally:
                    request.answered.set_result(report["answer"])
        except Exception:
            logger.exception("a report of the bot's process could not be shown")

    def _end_requests(self, numbers: list[int]) -> None:
        for number in numbers:
            self._requests.pop(number).answered.set_result(None)
