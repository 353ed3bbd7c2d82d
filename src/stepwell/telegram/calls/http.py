"""One HTTP/1.1 connection: it sends a request and reads the response. The only module that imports httptools."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple, cast

from stepwell._optional import require

_httptools: Any = require("httptools", "bot")

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
        self._parser: Any = _httptools.HttpResponseParser(self)
        #: Whether the response has begun, and the bytes of its head that have arrived; ``None`` after the head.
        self._begun = False
        self._head: int | None = 0
        self._body = bytearray()
        self._retry_after = ""
        #: Whether the response has a length, or ends with the connection.
        self._has_length = False
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
        if self._waiter is None:
            # Bytes that no request asked for would be taken for the next response.
            self.abort()
            return
        self._begun = True
        try:
            self._parser.feed_data(data)
        except _httptools.HttpParserError as error:
            self._fail(ValueError(f"the response is malformed: {error}"))
            return
        if self._head is not None:
            self._head += len(data)
            if self._head > MAX_HEAD:
                self._fail(ValueError("the response has a head that is too long"))
        elif len(self._body) > MAX_BODY:
            self._fail(ValueError("the response is too large"))

    def eof_received(self) -> None:
        self.is_open = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()
        if not self._lost.done():
            self._lost.set_result(None)
        if not self._begun and (exc is None or isinstance(exc, ConnectionResetError | BrokenPipeError)):
            self._fail(UnusedConnection())
        elif exc is not None:
            self._fail(exc)
        elif self._head is None and not self._has_length:
            self._respond()
        else:
            self._fail(EOFError())

    # Called by the parser

    def on_message_begin(self) -> None:
        # After a complete response, this is one that no request asked for.
        self.is_open = False
        self._head, self._has_length, self._retry_after = 0, False, ""
        self._body.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        known = name.lower()
        if known in (b"content-length", b"transfer-encoding"):
            self._has_length = True
        elif known == b"retry-after":
            self._retry_after = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._head = None

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        # Before the response, a server may send others with a status below 200.
        if self._parser.get_status_code() >= 200:
            self.is_open = self._parser.should_keep_alive()
            self._respond()

    # Internal

    def _respond(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(Response(self._parser.get_status_code(), self._retry_after, bytes(self._body)))

    def _fail(self, error: Exception) -> None:
        waiter, self._waiter = self._waiter, None
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
