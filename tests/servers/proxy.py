"""A TCP proxy that counts round trips, stops forwarding, and cuts connections at seeded random points."""

from __future__ import annotations

import asyncio
import random
import ssl
from pathlib import Path
from types import TracebackType
from typing import Self

#: Self-signed, for localhost and 127.0.0.1. The key is in the same file; it protects nothing.
CERTIFICATE = Path(__file__).with_name("localhost.pem")


class Proxy:
    """A proxy between clients and one server. The same seed repeats the same faults.

    ``tls``: its clients speak TLS, its server need not. ``cut_rate``: the share of requests whose connection
    is cut before the client gets the answer: some before the request is forwarded, some right after, most when the
    server has answered, so that the write was made.
    """

    def __init__(self, port: int, *, host: str = "127.0.0.1", seed: int = 0, tls: bool = False) -> None:
        self._target = (host, port)
        self._tls = tls
        self._random = random.Random(seed)
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()
        self.port = 0
        self.cut_rate = 0.0
        #: Cut only requests that contain these bytes.
        self.cut_what = b""
        #: The maximum number of cuts.
        self.most_cuts = 1_000_000
        self.cuts = 0
        #: The number of requests, answered or not.
        self.round_trips = 0
        #: All bytes from the clients, if recorded.
        self.requests: bytearray | None = None
        self._silent = False
        #: The next request with these bytes is held back, and its client's connection is cut.
        self.hold_what: bytes | None = None
        #: Set when a request is held back.
        self.holds = asyncio.Event()
        self._let_through = asyncio.Event()
        #: Set when the server has answered the request that was held back.
        self.arrived = asyncio.Event()

    async def __aenter__(self) -> Self:
        context = None
        if self._tls:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(CERTIFICATE)
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for pump in list(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        await self._server.wait_closed()

    def point_to(self, port: int) -> None:
        """Use another server, as after a failover, and cut all connections."""
        self._target = (self._target[0], port)
        self.cut_all()

    def fall_silent(self) -> None:
        """Accept connections and requests, but forward nothing from now on."""
        self._silent = True

    def speak(self) -> None:
        """Forward again, for new connections."""
        self._silent = False

    async def let_through(self) -> None:
        """Send the request that was held back, and wait until the server has answered it."""
        self._let_through.set()
        await self.arrived.wait()

    def cut_all(self) -> None:
        """Close every connection now."""
        for pump in list(self._pumps):
            pump.cancel()

    async def _serve(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        pump = asyncio.current_task()
        assert pump is not None
        self._pumps.add(pump)
        server_out: asyncio.StreamWriter | None = None
        try:
            server_in, server_out = await asyncio.open_connection(*self._target)
            await self._pump(client_in, client_out, server_in, server_out)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._pumps.discard(pump)
            for writer in (client_out, server_out):
                if writer is not None:
                    writer.transport.abort()

    async def _pump(
        self,
        client_in: asyncio.StreamReader,
        client_out: asyncio.StreamWriter,
        server_in: asyncio.StreamReader,
        server_out: asyncio.StreamWriter,
    ) -> None:
        asking = asyncio.ensure_future(client_in.read(1 << 16))
        answering = asyncio.ensure_future(server_in.read(1 << 16))
        answered = True
        cutting = False
        try:
            while True:
                await asyncio.wait({asking, answering}, return_when=asyncio.FIRST_COMPLETED)
                if asking.done():
                    request = asking.result()
                    if not request:
                        return
                    if answered:
                        answered = False
                        self.round_trips += 1
                        cutting = self._wants_cut(request)
                        if cutting and self._random.random() < 0.2:
                            return
                    if self.requests is not None:
                        self.requests += request
                    if self.hold_what is not None and self.hold_what in request:
                        self.hold_what = None
                        client_out.transport.abort()
                        self.holds.set()
                        await self._let_through.wait()
                        server_out.write(request)
                        await answering
                        self.arrived.set()
                        return
                    if not self._silent:
                        server_out.write(request)
                        await server_out.drain()
                        if cutting and self._random.random() < 0.2:
                            return
                    asking = asyncio.ensure_future(client_in.read(1 << 16))
                if answering.done():
                    answer = answering.result()
                    if not answer or cutting:
                        return
                    answered = True
                    if not self._silent:
                        client_out.write(answer)
                        await client_out.drain()
                    answering = asyncio.ensure_future(server_in.read(1 << 16))
        finally:
            asking.cancel()
            answering.cancel()

    def _wants_cut(self, request: bytes) -> bool:
        if self.cut_what not in request or self.cuts >= self.most_cuts or self._random.random() >= self.cut_rate:
            return False
        self.cuts += 1
        return True
