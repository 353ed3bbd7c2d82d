"""Serves an ASGI application on a socket. The only module that imports uvicorn."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from stepwell._optional import require
from stepwell.web.listening import listen

_uvicorn: Any = require("uvicorn", "playground")
_h11: Any = require("uvicorn.protocols.http.h11_impl", "playground")

__all__ = ["Serving", "allowed_hosts", "page_url"]

#: Seconds from the connection, or the first byte of a request, to its last byte.
REQUEST_TIMEOUT = 30.0
#: Seconds after which an idle connection is closed. A request that arrives at that moment is lost, and clients do not
#: retry a POST. This is longer than clients keep idle connections: httpx 5 s, aiohttp 15 s.
KEEP_ALIVE = 75
_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


def netloc(host: str, port: int) -> str:
    """Return ``host:port`` as in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def page_url(host: str, port: int) -> str:
    """Return the URL of a page for a browser on this machine."""
    return f"http://{netloc('127.0.0.1' if host in ('0.0.0.0', '::') else host, port)}/"  # noqa: S104


@cache
def allowed_hosts(host: str, port: int, more: tuple[str, ...]) -> frozenset[str]:
    """Return the Host headers to accept, against DNS rebinding; a name in ``more`` may have a port."""
    own = {netloc(host, port), f"127.0.0.1:{port}", f"localhost:{port}"}
    return frozenset(own | {name if ":" in name else f"{name}:{port}" for name in more})


class Serving:
    """One application on the running loop, from ``start`` to ``stop``."""

    def __init__(self, app: Any, *, name: str) -> None:
        # No access log, because its lines would contain tokens.
        config = _uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            http=_Protocol,
            timeout_keep_alive=KEEP_ALIVE,
        )
        self._server = _Server(config)
        self._name = name
        self._task: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int, *, or_free: bool = False) -> int:
        """Listen, and return the port; 0 chooses a free one, ``or_free`` too if the port is taken."""
        listening = listen(host, port, or_free=or_free)
        self._task = asyncio.create_task(self._server.serve(sockets=[listening]), name=self._name)
        while not self._server.started:
            if self._task.done():
                self._task.result()
            await asyncio.sleep(0.005)
        number: int = listening.getsockname()[1]
        return number

    async def stop(self) -> None:
        """Stop listening, and close open connections."""
        if self._task is None:
            return
        self._server.should_exit = True
        # Do not wait for clients that keep their connection open.
        self._server.force_exit = True
        await self._task


class _Server(_uvicorn.Server):  # type: ignore[misc]
    """A server that leaves signals to the program."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Protocol(_h11.H11Protocol):  # type: ignore[misc]
    """Closes a connection if a request does not arrive in time. Responses have no time limit."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # Whatever the logging configuration is: a line would contain the token.
        self.access_log = False
        self._expect()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # After a complete response, this is the start of the next request.
        self._watch(begun=self.cycle is None or self.cycle.response_complete)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch(begun=False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        super().connection_lost(exc)

    def _watch(self, *, begun: bool) -> None:
        if begun or (self.cycle is not None and self.cycle.more_body):
            self._expect()
        else:
            self._arrived()

    def _expect(self) -> None:
        if self._late is None and not self.transport.is_closing():
            self._late = self.loop.call_later(REQUEST_TIMEOUT, self._give_up)

    def _arrived(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _give_up(self) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(_LATE)
        self.transport.close()
