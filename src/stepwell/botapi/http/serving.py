"""Serves an ASGI application on a socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from stepwell.botapi.errors import NotPossible, quoted
from stepwell.botapi.http.packages import HttpToolsProtocol, uvicorn

__all__ = ["CUT", "HTTPServer", "allowed_hosts", "netloc"]

#: The name in the state of a request of a function that closes the connection immediately.
CUT = "botapi.cut"
#: Seconds from the connection, or the first byte of a request, to its last byte.
REQUEST_TIMEOUT = 30.0
#: Seconds after which an idle connection is closed. A request that arrives at that moment is lost, and clients do not
#: retry a POST. This is longer than clients keep idle connections: httpx 5 s, aiohttp 15 s.
KEEP_ALIVE = 75
_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


def netloc(host: str, port: int) -> str:
    """Return ``host:port`` as in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@cache
def allowed_hosts(host: str, port: int, more: tuple[str, ...]) -> frozenset[str]:
    """Return the Host headers to accept, against DNS rebinding; a name in ``more`` may have a port."""
    own = {netloc(host, port), f"127.0.0.1:{port}", f"localhost:{port}"}
    return frozenset(own | {name if ":" in name else f"{name}:{port}" for name in more})


def _listen(host: str, port: int) -> socket.socket:
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        # Python appends the address.
        why = str(error.strerror or error).partition(" (")[0]
        shown = quoted(host).strip("'")
        raise NotPossible(f"cannot listen on {shown} port {port}: {why}; choose another host or port") from error
    # Accepted connections inherit it. asyncio sets it only on sockets of ``getaddrinfo``, and uvicorn writes a response
    # in two pieces: the second one would wait 40 ms for the client's delayed acknowledgement.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


class HTTPServer:
    """One application on the running loop, from ``start`` to ``stop``."""

    def __init__(self, app: Any, *, name: str) -> None:
        # No access log, because its lines would contain tokens.
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            http=_Protocol,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE,
        )
        self._server = _Server(config)
        self._name = name
        self._task: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port; 0 chooses a free one. Raises ``NotPossible`` if that is not possible."""
        listening = _listen(host, port)
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


class _Server(uvicorn.Server):
    """A server that leaves signals to the program."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Protocol(HttpToolsProtocol):
    """Closes a connection if a request does not arrive in time. Responses have no time limit."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # Whatever the logging configuration is: a line would contain the token.
        self.access_log = False
        self.app_state: dict[str, Any] = {**self.app_state, CUT: transport.abort}
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
        self._unset_keepalive_if_required()
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
