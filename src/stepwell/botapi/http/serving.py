"""Serves an ASGI application on a socket."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple, TypeAlias

from stepwell.botapi.errors import NotPossible
from stepwell.botapi.http.packages import H11Protocol, h11, uvicorn

__all__ = ["CUT", "Direct", "HTTPServer", "PlainRequest", "allowed_hosts", "netloc"]

#: The name in the state of a request of a function that closes the connection immediately.
CUT = "botapi.cut"
#: Seconds from the connection, or the first byte of a request, to its last byte.
REQUEST_TIMEOUT = 30.0
#: Seconds after which an idle connection is closed. A request that arrives at that moment is lost, and clients do not
#: retry a POST. This is longer than clients keep idle connections: httpx 5 s, aiohttp 15 s.
KEEP_ALIVE = 75
_IDLE = (h11.IDLE, h11.IDLE)
_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"

_FAILED = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n"
#: Without a query and without percent-encoding.
_PLAIN = re.compile(rb"POST (/[!-$&->@-~]*) HTTP/1\.1\r\n((?:[!-9;-~]+:[\t -~]*\r\n)+)\r\n")
_NOT_PLAIN = frozenset({"transfer-encoding", "expect", "upgrade", "trailer"})


class PlainRequest(NamedTuple):
    """A POST request that arrived in one piece."""

    target: str
    #: By their names in lower case.
    headers: dict[str, str]
    body: bytes


#: Returns the whole response as bytes; ``None`` closes the connection.
Direct: TypeAlias = Callable[[PlainRequest], Awaitable[bytes | None]]


def read_plain(data: bytes) -> PlainRequest | None:
    """Return the request if these bytes are exactly one plain request, which needs no HTTP parser."""
    found = _PLAIN.match(data)
    if found is None:
        return None
    lines = found[2].decode("ascii").split("\r\n")[:-1]
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip(" \t")
    body = data[found.end() :]
    if (
        len(headers) < len(lines)
        or headers.get("content-length") != str(len(body))
        or headers.get("connection", "keep-alive").lower() != "keep-alive"
        or not _NOT_PLAIN.isdisjoint(headers)
    ):
        return None
    return PlainRequest(found[1].decode("ascii"), headers, body)


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
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        # Python appends the address.
        why = str(error.strerror or error).partition(" (")[0]
        raise NotPossible(f"cannot listen on {host} port {port}: {why}; choose another host or port") from error


class HTTPServer:
    """One application on the running loop, from ``start`` to ``stop``.

    ``direct`` responds to plain requests, at less than half the cost of the application behind an HTTP parser.
    """

    def __init__(self, app: Any, *, name: str, direct: Direct) -> None:
        # No access log, because its lines would contain tokens.
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            http=partial(_Protocol, direct=direct),  # type: ignore[arg-type]
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


class _Protocol(H11Protocol):
    """Closes a connection if a request does not arrive in time. Responses have no time limit."""

    _late: asyncio.TimerHandle | None = None
    #: Whether a direct response is under way.
    _responding: bool = False
    #: Bytes that arrived meanwhile.
    _held: bytes = b""
    #: Whether the parser has got bytes.
    _parsed: bool = False
    #: When the last direct response was sent.
    _used_at: float = 0.0

    def __init__(self, *args: Any, direct: Direct, **options: Any) -> None:
        super().__init__(*args, **options)
        self._direct = direct

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # Whatever the logging configuration is: a line would contain the token.
        self.access_log = False
        state: dict[str, Any] = self.app_state
        self.app_state: dict[str, Any] = {**state, CUT: transport.abort}
        self._expect()

    def data_received(self, data: bytes) -> None:
        if self._responding:
            self._held += data
            self.flow.pause_reading()
            return
        if self._is_idle():
            request = read_plain(data)
            if request is not None:
                self._arrived()
                self._responding = True
                task = self.loop.create_task(self._respond(request))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
                return
        self._parsed = True
        super().data_received(data)
        # After a complete response, this is the start of the next request.
        self._watch(begun=self.cycle is None or self.cycle.response_complete)

    def _is_idle(self) -> bool:
        """Return whether the parser is between two requests and has no bytes of the next one."""
        if not self._parsed:
            return True
        parser = self.conn
        return (parser.our_state, parser.their_state) == _IDLE and not parser.trailing_data[0]

    async def _respond(self, request: PlainRequest) -> None:
        try:
            response = await self._direct(request)
        except Exception:
            self.logger.exception("a request failed")
            response = _FAILED
        self._responding = False
        if response is None:
            self.transport.abort()
            return
        if self.transport.is_closing():
            return
        self.transport.write(response)
        self._used_at = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._close_after(KEEP_ALIVE)
        held, self._held = self._held, b""
        self.flow.resume_reading()
        if held:
            self.data_received(held)

    def _close_after(self, seconds: float) -> None:
        self.timeout_keep_alive_task: Any = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection. Direct responses do not set the timer again: it does that itself, when it fires."""
        self.timeout_keep_alive_task = None
        left = KEEP_ALIVE if self._responding else self._used_at + KEEP_ALIVE - self.loop.time()
        if left > 0:
            self._close_after(left)
        else:
            super().timeout_keep_alive_handler()

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
