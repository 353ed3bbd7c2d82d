"""One HTTP/1.1 connection: it sends a request and reads the response."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import NamedTuple, TypeAlias, cast

__all__ = ["HttpConnection", "Response", "UnusedConnection"]

#: The largest response in bytes, and the largest head of one.
MAX_BODY = 64 * 1024 * 1024
MAX_HEAD = 64 * 1024


class UnusedConnection(Exception):
    """The connection was closed before the response began, as servers do with connections that are kept too long."""


class Response(NamedTuple):
    """The response of a server."""

    status: int
    #: The header ``Retry-After``, empty if there is none.
    retry_after: str
    body: bytes


#: Yields when it needs more bytes; returns the response, and whether the connection can be used again.
_Parser: TypeAlias = Generator[None, None, tuple[Response, bool]]


class HttpConnection(asyncio.Protocol):
    """One connection. It can be used again when the last response was read completely."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        #: Whether the connection can be used for the next request.
        self.is_open: bool = False
        #: For the pool: the time of the last response.
        self.used_at: float = 0.0
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._lost: asyncio.Future[None] = loop.create_future()
        #: The request under way.
        self._waiter: asyncio.Future[Response] | None = None
        self._parser: _Parser | None = None
        self._buffer = bytearray()
        #: Whether the response has begun.
        self._begun = False
        self._ended = False
        #: One timer for many requests: it is set again when it fires too early.
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._deadline = 0.0

    def exchange(self, request: bytes, deadline: float) -> asyncio.Future[Response]:
        """Send a request; return a future with its response.

        Its errors are ``UnusedConnection``, ``TimeoutError`` at the deadline, which is a time of the loop,
        ``EOFError``, ``OSError``, and ``ValueError`` for a response that cannot be read.
        """
        assert self._transport is not None
        waiter = self._waiter = self._loop.create_future()
        self._parser = self._parse()
        self.is_open = self._begun = False
        self._deadline = deadline
        if self._timer is None or self._timer_at > deadline:
            self._set_timer()
        self._transport.write(request)
        return waiter

    def abort(self) -> None:
        """Close the connection, without waiting for unsent bytes."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    async def closed(self) -> None:
        """Wait until the socket is closed."""
        await asyncio.shield(self._lost)

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Transports of other loops are no subclasses.
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            # Bytes that no request asked for would be taken for the next response.
            self.abort()
            return
        self._begun = True
        self._buffer += data
        self._advance()

    def eof_received(self) -> None:
        self.is_open = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open, self._ended = False, True
        if self._timer is not None:
            self._timer.cancel()
        if not self._lost.done():
            self._lost.set_result(None)
        if not self._begun and (exc is None or isinstance(exc, ConnectionResetError | BrokenPipeError)):
            self._fail(UnusedConnection())
        elif exc is not None:
            self._fail(exc)
        else:
            # A body without a length ends here.
            self._advance()

    # Internal

    def _advance(self) -> None:
        """Continue to read the response."""
        if self._parser is None:
            return
        try:
            next(self._parser)
        except StopIteration as done:
            response, whole = done.value
            waiter, self._waiter, self._parser = self._waiter, None, None
            self.is_open = whole and not self._buffer and not self._ended
            if waiter is not None and not waiter.done():
                waiter.set_result(response)
        except (EOFError, ValueError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        waiter, self._waiter, self._parser = self._waiter, None, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._deadline
        self._timer = self._loop.call_at(self._deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._waiter is None:
            return
        if self._deadline > self._timer_at:
            self._set_timer()
        else:
            self._fail(TimeoutError())

    def _parse(self) -> _Parser:
        while True:
            head = yield from self._until(b"\r\n\r\n")
            first, _, headers = head.partition(b"\r\n")
            version, _, rest = first.partition(b" ")
            if not version.startswith(b"HTTP/1."):
                raise ValueError("the server does not speak HTTP/1.1")
            status = int(rest[:3])
            if not 100 <= status < 200:
                break
        named: dict[bytes, bytes] = {}
        for line in headers.split(b"\r\n"):
            name, _, value = line.partition(b":")
            named[name.lower()] = value.strip()
        whole = version == b"HTTP/1.1" and named.get(b"connection", b"").lower() != b"close"
        if b"transfer-encoding" in named:
            if named[b"transfer-encoding"].lower() != b"chunked":
                raise ValueError("the server uses an unsupported transfer encoding")
            body = yield from self._chunks()
        elif b"content-length" in named:
            body = yield from self._exactly(_size(named[b"content-length"], 10))
        else:
            body, whole = (yield from self._to_end()), False
        return Response(status, named.get(b"retry-after", b"").decode("latin-1"), body), whole

    def _until(self, separator: bytes) -> Generator[None, None, bytes]:
        buffer = self._buffer
        while (at := buffer.find(separator)) < 0:
            if len(buffer) > MAX_HEAD:
                raise ValueError("the response has a line that is too long")
            yield from self._more()
        found = bytes(buffer[:at])
        del buffer[: at + len(separator)]
        return found

    def _exactly(self, size: int) -> Generator[None, None, bytes]:
        buffer = self._buffer
        while len(buffer) < size:
            yield from self._more()
        found = bytes(buffer[:size])
        del buffer[:size]
        return found

    def _to_end(self) -> Generator[None, None, bytes]:
        while not self._ended:
            if len(self._buffer) > MAX_BODY:
                raise ValueError("the response is too large")
            yield
        return bytes(self._buffer)

    def _chunks(self) -> Generator[None, None, bytes]:
        body = bytearray()
        while True:
            line = yield from self._until(b"\r\n")
            size = _size(line.partition(b";")[0].strip(), 16)
            if not size:
                break
            if len(body) + size > MAX_BODY:
                raise ValueError("the response is too large")
            body += yield from self._exactly(size)
            if (yield from self._exactly(2)) != b"\r\n":
                raise ValueError("the response is malformed")
        # Trailers end with an empty line.
        while (yield from self._until(b"\r\n")):
            pass
        return bytes(body)

    def _more(self) -> Generator[None, None, None]:
        """Wait for more bytes. Raises ``EOFError`` if there will be none."""
        if self._ended:
            raise EOFError
        yield


def _size(digits: bytes, base: int) -> int:
    if not digits.isalnum():
        raise ValueError("the response has an invalid length")
    size = int(digits, base)
    if size > MAX_BODY:
        raise ValueError("the response is too large")
    return size
