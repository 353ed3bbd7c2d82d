"""A health endpoint for probes: whether the process lives, and whether it is ready to work.

``/health/live`` is answered with 200 as long as the event loop runs. ``/health/ready`` is answered with 200 if
everything that the process does regularly has worked lately, else with 503. Both return the ages as JSON, without any
contents of records.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple, Self

from stepwell.codec.json import to_json
from stepwell.errors import UsageError
from stepwell.options import check_whole

__all__ = ["POLL_AGE", "WRITE_AGE", "Health"]

logger: logging.Logger = logging.getLogger(__name__)

#: Seconds after which a process is not ready whose last read of timers and queues, or whose last write of its
#: presence, is older.
POLL_AGE, WRITE_AGE = 30.0, 90.0
#: Seconds for one request, and its most bytes.
REQUEST_TIMEOUT, REQUEST_BYTES = 5.0, 8192

#: Returns when something has worked last, on the monotonic clock; ``None`` if it has not yet.
At = Callable[[], float | None]


class _RegularWork(NamedTuple):
    at: At
    #: The process is not ready if it is older.
    limit: float
    #: Whether the process is not ready before it has worked once.
    needed: bool


class Health:
    """The health of this process, served on a port within ``async with``.

    ``stopping``: whether the process stops, and takes nothing new. Raises ``InvalidOption`` unless the port is a whole
    number, and ``UsageError`` if it is taken.
    """

    def __init__(self, port: int, stopping: Callable[[], bool]) -> None:
        check_whole(port, "health={}: give a port from 1 to 65535, or 0 for a free one", least=0, most=65535)
        #: The port; with 0, the one that was chosen, once it is served.
        self.port: int = port
        self._checks: dict[str, _RegularWork] = {}
        self._server: asyncio.Server | None = None
        self._stopping = stopping

    def check(self, name: str, at: At, limit: float, *, needed: bool = True) -> None:
        """Report the age of something; without ``needed`` it may not have happened yet."""
        self._checks[name] = _RegularWork(at, limit, needed)

    def report(self) -> dict[str, Any]:
        """Return whether the process is ready, why not, and the seconds since each check has worked."""
        now = monotonic()
        problems = ["it is stopping"] if self._stopping() else []
        ages: dict[str, float | None] = {}
        for name, check in self._checks.items():
            at = check.at()
            ages[name] = None if at is None else round(now - at, 1)
            if at is None and check.needed:
                problems.append(f"no {name} has worked yet")
            elif at is not None and now - at > check.limit:
                problems.append(f"the last {name} that worked was {now - at:.0f} s ago")
        return {"ready": not problems, "problems": problems, "seconds_since": ages}

    async def __aenter__(self) -> Self:
        try:
            # All addresses: probes of an orchestrator come from outside of the container.
            self._server = await asyncio.start_server(self._serve, None, self.port, limit=REQUEST_BYTES)
        except OSError as error:
            raise UsageError(
                f"the health endpoint cannot use port {self.port} ({error.strerror or error}); give another port"
            ) from error
        # A free port is another one for each family of addresses.
        sockets = sorted(self._server.sockets, key=lambda each: each.family != socket.AF_INET)
        self.port = sockets[0].getsockname()[1]
        logger.info("health: http://localhost:%d/health/ready", self.port)
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        try:
            with contextlib.suppress(OSError, TimeoutError, asyncio.LimitOverrunError, asyncio.IncompleteReadError):
                async with asyncio.timeout(REQUEST_TIMEOUT):
                    request = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._response(request.split(b"\r\n", 1)[0]))
                    await writer.drain()
        finally:
            writer.close()

    def _response(self, line: bytes) -> bytes:
        method, _, rest = line.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        report = self.report()
        body: dict[str, Any]
        if method not in (b"GET", b"HEAD"):
            status, body = "405 Method Not Allowed", {"error": "use GET"}
        elif path == b"/health/live":
            status, body = "200 OK", {"live": True, **report}
        elif path == b"/health/ready":
            status, body = "200 OK" if report["ready"] else "503 Service Unavailable", report
        else:
            status, body = "404 Not Found", {"error": "use /health/live or /health/ready"}
        text = to_json(body)
        head = (
            f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n"
            "cache-control: no-store\r\nconnection: close\r\n\r\n"
        )
        return head.encode() + (b"" if method == b"HEAD" else text)
