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
from http import HTTPStatus
from time import monotonic
from typing import Any, Final, NamedTuple, Self

from stepwell.codec.json import to_json
from stepwell.errors import UsageError
from stepwell.options import check_whole

__all__ = ["HEALTH", "POLL_AGE", "WRITE_AGE", "Health", "HealthServer"]

logger: logging.Logger = logging.getLogger(__name__)

#: Seconds after which a process is not ready whose last read of timers and queues, or whose last write of its
#: presence, is older.
POLL_AGE, WRITE_AGE = 30.0, 90.0
#: Seconds for one request, and its most bytes.
REQUEST_TIMEOUT, REQUEST_BYTES = 5.0, 8192
#: What the paths of the endpoint begin with.
HEALTH: Final = "/health/"

#: Returns when something has worked last, on the monotonic clock; ``None`` if it has not yet.
At = Callable[[], float | None]


class _RegularWork(NamedTuple):
    at: At
    #: The process is not ready if it is older.
    limit: float
    #: Whether the process is not ready before it has worked once.
    needed: bool


class Health:
    """The health of this process.

    ``stopping``: whether the process stops, and takes nothing new.
    """

    def __init__(self, stopping: Callable[[], bool]) -> None:
        self._checks: dict[str, _RegularWork] = {}
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

    def respond(self, method: str, path: str) -> tuple[HTTPStatus, bytes]:
        """Return the status and the JSON for a request."""
        report = self.report()
        if method not in ("GET", "HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED, to_json({"error": "use GET"})
        if path == f"{HEALTH}live":
            return HTTPStatus.OK, to_json({"live": True, **report})
        if path == f"{HEALTH}ready":
            return HTTPStatus.OK if report["ready"] else HTTPStatus.SERVICE_UNAVAILABLE, to_json(report)
        return HTTPStatus.NOT_FOUND, to_json({"error": "use /health/live or /health/ready"})


class HealthServer:
    """Serves the health of this process on a port within ``async with``.

    Raises ``InvalidOption`` unless the port is a whole number, and ``UsageError`` if it is taken.
    """

    def __init__(self, port: int, health: Health) -> None:
        check_whole(port, "health={}: give a port from 1 to 65535, or 0 for a free one", least=0, most=65535)
        #: The port; with 0, the one that was chosen, once it is served.
        self.port: int = port
        self._health = health
        self._server: asyncio.Server | None = None

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
        method, _, rest = line.decode("latin-1").partition(" ")
        status, text = self._health.respond(method, rest.partition(" ")[0].partition("?")[0])
        head = (
            f"HTTP/1.1 {status} {status.phrase}\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n"
            "cache-control: no-store\r\nconnection: close\r\n\r\n"
        )
        return head.encode() + (b"" if method == "HEAD" else text)
