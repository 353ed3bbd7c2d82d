"""The fast path for calls: JSON over kept-alive HTTP/1.1 connections to one server.

A call takes a small part of the time that it takes through the pool of httpx (docs/decisions/060).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from stepwell.telegram.calls.http import HttpConnection, Response, UnusedConnection

__all__ = ["CancelScopes", "Connections", "NoAnswer", "Response"]

_Connected: TypeAlias = tuple[asyncio.Transport, HttpConnection]

#: Seconds to wait for one address of the server before the next one is tried too.
NEXT_ADDRESS = 0.25


class NoAnswer(Exception):
    """There was no complete response. The call may have been performed."""


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
        #: How many calls may use a connection, and how many do.
        self._size = size
        self._calls = 0
        #: Calls that wait for a connection.
        self._waiting: deque[asyncio.Future[None]] = deque()
        #: The connection that was used last is on the right.
        self._idle: deque[HttpConnection] = deque()
        self._busy: set[HttpConnection] = set()
        self._connecting = CancelScopes()
        self._opening: set[asyncio.Task[_Connected]] = set()
        self._expiry: asyncio.TimerHandle | None = None
        self._closed = False

    async def post(self, target: bytes, body: bytes, timeout: float) -> Response:
        """Post a JSON body and return the response. Raises ``NoAnswer``."""
        request = b"POST %b HTTP/1.1\r\n%b%d\r\n\r\n%b" % (target, self._head, len(body), body)
        # Waiting for a free connection is not a failure of the server, so it has no timeout.
        if self._calls < self._size:
            self._calls += 1
        else:
            await self._wait()
        try:
            deadline = self._loop.time() + timeout
            while True:
                kept = self._taken()
                connection = kept or await self._connect(deadline)
                self._busy.add(connection)
                try:
                    if self._closed:
                        raise NoAnswer("closed")
                    return await connection.exchange(request, deadline)
                except UnusedConnection:
                    if kept is None:
                        raise
                finally:
                    # After an error or a cancellation, a late response could be taken for that of the next call.
                    self._release(connection)
        except TimeoutError:
            raise NoAnswer(f"no response within {timeout:g} s") from None
        except (EOFError, UnusedConnection):
            raise NoAnswer("the connection was closed") from None
        except (OSError, ValueError) as error:
            raise NoAnswer(f"{type(error).__name__}: {error}") from None
        finally:
            self._leave()

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

    async def _wait(self) -> None:
        """Wait until a call ends, and take its place."""
        place: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():
                # The place was given at the same moment.
                self._leave()
            elif place in self._waiting:
                self._waiting.remove(place)
            raise

    def _leave(self) -> None:
        """Give the place of a call to the next one."""
        waiting = self._waiting
        while waiting:
            place = waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._calls -= 1

    def _taken(self) -> HttpConnection | None:
        """Return a connection that can be used again, ``None`` if there is none."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
            connection.abort()
        return None

    def _release(self, connection: HttpConnection) -> None:
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

    async def _connect(self, deadline: float) -> HttpConnection:
        if self._closed:
            raise NoAnswer("closed")
        # Only the loops of asyncio have this option.
        is_asyncio = isinstance(self._loop, asyncio.BaseEventLoop)
        more: dict[str, Any] = {"happy_eyeballs_delay": NEXT_ADDRESS} if is_asyncio else {}
        factory = partial(HttpConnection, self._loop)
        connecting = self._loop.create_connection(factory, self._host, self._port, ssl=self._context, **more)
        # asyncio forgets the socket of a connection that succeeds while it is cancelled, so this task is not cancelled.
        opening = self._loop.create_task(connecting)
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)
        try:
            async with asyncio.timeout_at(deadline), self._connecting.scope():
                return (await asyncio.shield(opening))[1]
        except BaseException:
            opening.add_done_callback(_abandon)
            raise


def _abandon(opening: asyncio.Task[_Connected]) -> None:
    """Close a connection whose caller was cancelled."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[1].abort()
