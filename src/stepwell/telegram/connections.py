"""The fast path for calls: JSON over kept-alive HTTP/1.1 connections to one server.

A call takes a small part of the time that it takes through the pool of httpx (docs/decisions/060).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

__all__ = ["CancelScopes", "Connections", "NoAnswer", "Response"]

_Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]

#: The largest response in bytes.
MAX_BODY = 64 * 1024 * 1024
#: Seconds to wait for one address of the server before the next one is tried too.
NEXT_ADDRESS = 0.25


class NoAnswer(Exception):
    """There was no complete response. The call may have been performed."""


class _Unused(Exception):
    """The connection was closed before the response began, as servers do with connections that are kept too long."""


class Response(NamedTuple):
    """The response of a server."""

    status: int
    #: The header ``Retry-After``, empty if there is none.
    retry_after: str
    body: bytes


class CancelScopes:
    """Blocks of running tasks that end with ``NoAnswer`` when ``cancel`` is called."""

    def __init__(self) -> None:
        self._scopes: set[asyncio.Timeout] = set()

    @contextlib.asynccontextmanager
    async def scope(self) -> AsyncIterator[None]:
        """Run the block until it ends or ``cancel`` is called."""
        try:
            async with asyncio.timeout(None) as timeout:
                self._scopes.add(timeout)
                try:
                    yield
                finally:
                    self._scopes.discard(timeout)
        except TimeoutError:
            if not timeout.expired():
                raise
            raise NoAnswer("closed") from None

    def cancel(self) -> None:
        """Cancel all blocks."""
        now = asyncio.get_running_loop().time()
        while self._scopes:
            self._scopes.pop().reschedule(now)


class Connections:
    """Connections to the server of a URL: at most ``size``, closed after ``keep_alive`` seconds without use."""

    def __init__(self, url: str, *, context: ssl.SSLContext | None, size: int, keep_alive: float) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._context = context
        self._keep_alive = keep_alive
        self._head = (
            f"Host: {parts.netloc}\r\nUser-Agent: stepwell\r\nAccept: application/json\r\n"
            "Content-Type: application/json\r\nContent-Length: "
        ).encode()
        self._loop = asyncio.get_running_loop()
        self._free = asyncio.Semaphore(size)
        #: The connection that was used last is on the right.
        self._idle: deque[_KeptConnection] = deque()
        self._busy: set[_KeptConnection] = set()
        self._connecting = CancelScopes()
        self._opening: set[asyncio.Task[_Streams]] = set()
        self._expiry: asyncio.TimerHandle | None = None
        self._closed = False

    async def post(self, target: bytes, body: bytes, timeout: float) -> Response:
        """Post a JSON body and return the response. Raises ``NoAnswer``."""
        request = b"POST %b HTTP/1.1\r\n%b%d\r\n\r\n%b" % (target, self._head, len(body), body)
        # Waiting for a free connection is not a failure of the server, so it has no timeout.
        async with self._free:
            try:
                async with asyncio.timeout(timeout):
                    while (connection := self._taken()) is not None:
                        with contextlib.suppress(_Unused):
                            return await self._exchange(connection, request)
                    return await self._exchange(await self._connect(), request)
            except TimeoutError:
                raise NoAnswer(f"no response within {timeout:g} s") from None
            except (OSError, EOFError, ValueError, asyncio.LimitOverrunError, _Unused) as error:
                # An incomplete response shows its bytes in the message.
                closed = isinstance(error, EOFError | _Unused)
                raise NoAnswer("the connection was closed" if closed else f"{type(error).__name__}: {error}") from None

    async def _exchange(self, connection: _KeptConnection, request: bytes) -> Response:
        self._busy.add(connection)
        try:
            if self._closed:
                raise NoAnswer("closed")
            return await connection.exchange(request)
        finally:
            # After an error or a cancellation, a late response could be taken for that of the next call.
            self._release(connection)

    async def close(self) -> None:
        """Close all connections. Calls that are under way raise ``NoAnswer``."""
        self._closed = True
        self._connecting.cancel()
        if self._expiry is not None:
            self._expiry.cancel()
        connections = [*self._idle, *self._busy]
        self._idle.clear()
        for connection in connections:
            connection.abort()
        for connection in connections:
            await connection.closed()
        if self._opening:
            await asyncio.wait(self._opening, timeout=1.0)
        for opening in self._opening:
            opening.cancel()

    def _taken(self) -> _KeptConnection | None:
        """Return a connection that can be used again, ``None`` if there is none."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
            connection.abort()
        return None

    def _release(self, connection: _KeptConnection) -> None:
        self._busy.discard(connection)
        if self._closed or not connection.is_open:
            connection.abort()
            return
        connection.used_at = self._loop.time()
        self._idle.append(connection)
        if self._expiry is None:
            self._expiry = self._loop.call_later(self._keep_alive, self._expire)

    def _expire(self) -> None:
        """Close the connections that were not used for a while."""
        self._expiry = None
        now = self._loop.time()
        while self._idle and now - self._idle[0].used_at >= self._keep_alive:
            self._idle.popleft().abort()
        if self._idle:
            self._expiry = self._loop.call_at(self._idle[0].used_at + self._keep_alive, self._expire)

    async def _connect(self) -> _KeptConnection:
        if self._closed:
            raise NoAnswer("closed")
        # Only the loops of asyncio have this option.
        is_asyncio = isinstance(self._loop, asyncio.BaseEventLoop)
        more: dict[str, Any] = {"happy_eyeballs_delay": NEXT_ADDRESS} if is_asyncio else {}
        connecting = asyncio.open_connection(self._host, self._port, ssl=self._context, **more)
        # asyncio forgets the socket of a connection that succeeds while it is cancelled, so this task is not cancelled.
        opening = self._loop.create_task(connecting)
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)
        try:
            async with self._connecting.scope():
                return _KeptConnection(*await asyncio.shield(opening))
        except BaseException:
            opening.add_done_callback(_abandon)
            raise


class _KeptConnection:
    """One connection. It can be used again when the last response was read completely."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._complete = True
        self.used_at = 0.0

    @property
    def is_open(self) -> bool:
        return self._complete and not self._reader.at_eof() and not self._writer.is_closing()

    async def exchange(self, request: bytes) -> Response:
        """Send a request and return its response. Raises ``_Unused``, ``OSError``, ``EOFError``, ``ValueError``."""
        self._complete = False
        try:
            self._writer.write(request)
            await self._writer.drain()
            head = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            raise error if error.partial else _Unused from None
        except (ConnectionResetError, BrokenPipeError):
            raise _Unused from None
        while True:
            first, _, headers = head.partition(b"\r\n")
            version, _, rest = first.partition(b" ")
            if not version.startswith(b"HTTP/1."):
                raise ValueError("the server does not speak HTTP/1.1")
            status = int(rest[:3])
            if not 100 <= status < 200:
                break
            head = await self._reader.readuntil(b"\r\n\r\n")
        named: dict[bytes, bytes] = {}
        for line in headers.split(b"\r\n"):
            name, _, value = line.partition(b":")
            named[name.lower()] = value.strip()
        body, whole = await self._body(named)
        self._complete = whole and version == b"HTTP/1.1" and named.get(b"connection", b"").lower() != b"close"
        return Response(status, named.get(b"retry-after", b"").decode("latin-1"), body)

    async def _body(self, headers: dict[bytes, bytes]) -> tuple[bytes, bool]:
        """Return the body, and whether the connection can be used again."""
        if b"transfer-encoding" in headers:
            if headers[b"transfer-encoding"].lower() != b"chunked":
                raise ValueError("the server uses an unsupported transfer encoding")
            return await self._chunks(), True
        if b"content-length" in headers:
            return await self._reader.readexactly(_size(headers[b"content-length"], 10)), True
        # Up to the end of the connection.
        body = bytearray()
        while piece := await self._reader.read(65536):
            body += piece
            if len(body) > MAX_BODY:
                raise ValueError("the response is too large")
        return bytes(body), False

    async def _chunks(self) -> bytes:
        body = bytearray()
        while True:
            line = await self._reader.readuntil(b"\r\n")
            size = _size(line.partition(b";")[0].strip(), 16)
            if not size:
                break
            if len(body) + size > MAX_BODY:
                raise ValueError("the response is too large")
            body += await self._reader.readexactly(size)
            if await self._reader.readexactly(2) != b"\r\n":
                raise ValueError("the response is malformed")
        # Trailers end with an empty line.
        while await self._reader.readuntil(b"\r\n") != b"\r\n":
            pass
        return bytes(body)

    def abort(self) -> None:
        self._complete = False
        self._writer.transport.abort()

    async def closed(self) -> None:
        """Wait until the socket is closed."""
        # An error of the connection was raised by its call already.
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


def _abandon(opening: asyncio.Task[_Streams]) -> None:
    """Close a connection whose caller was cancelled."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[1].transport.abort()


def _size(digits: bytes, base: int) -> int:
    if not digits.isalnum():
        raise ValueError("the response has an invalid length")
    size = int(digits, base)
    if size > MAX_BODY:
        raise ValueError("the response is too large")
    return size
