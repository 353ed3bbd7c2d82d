"""The connections of the fast path, against a server that follows a script."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stepwell.telegram.calls.connections import Connections, NoAnswer
from tests.until import until, yields

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Server:
    """Answers the requests of each connection with these pieces; ``None`` closes the connection."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.connections = 0
        self.requests: list[bytes] = []
        self.closed = asyncio.Event()
        self.url = ""
        self._tasks: set[Any] = set()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.current_task())
        self.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if answer is None:
                    break
                for piece in answer.split(b"|"):
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                if answer.endswith(b"|"):
                    break
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        self.closed.set()

    @contextlib.asynccontextmanager
    async def serving(self, **options: Any) -> AsyncIterator[Connections]:
        async with await asyncio.start_server(self.handle, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            connections = Connections(url, context=None, **{"size": 10, "keep_alive": 30.0, **options})
            try:
                yield connections
            finally:
                await connections.close()
                if self._tasks:
                    await asyncio.wait(self._tasks)


async def test_a_connection_is_used_again() -> None:
    server = Server(OK)
    async with server.serving() as connections:
        for number in range(20):
            assert (await connections.post(b"/x", b"%d" % number, 5)).body == b"ok"
    assert server.connections == 1
    assert server.requests[7].startswith(b"POST /x HTTP/1.1\r\nHost: 127.0.0.1:")
    assert server.requests[7].endswith(b"\r\n\r\n7")


@pytest.mark.parametrize(
    ("answer", "body", "reused"),
    [
        (OK, b"ok", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r|\n|o|k", b"ok", True),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"ok", True),
        (CHUNKED + b"1;x=y\r\no|\r\n1\r\nk\r\n0\r\nTrailer: 1\r\n\r\n", b"ok", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: Close\r\n\r\nok", b"ok", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok", False),
        (b"HTTP/1.1 200 OK\r\n\r\no|k|", b"ok", False),
    ],
)
async def test_forms_of_a_response(answer: bytes, body: bytes, reused: bool) -> None:
    server = Server(answer)
    async with server.serving() as connections:
        for _ in range(2):
            response = await connections.post(b"/", b"{}", 5)
            assert (response.status, response.body) == (200, body)
    assert server.connections == (1 if reused else 2)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok|",
        b"HTTP/1.1 200|",
        b"HTTP/2 200 OK\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
        CHUNKED + b"xyz\r\n",
        CHUNKED + b"1\r\nab\r\n",
        CHUNKED + b"fffffffff\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
    ],
)
async def test_a_broken_response_is_no_answer_and_its_connection_is_not_used_again(answer: bytes | None) -> None:
    server = Server(answer, OK)
    async with server.serving() as connections:
        with pytest.raises(NoAnswer) as raised:
            await connections.post(b"/secret", b"{}", 5)
        assert "secret" not in str(raised.value)
        assert (await connections.post(b"/", b"{}", 5)).body == b"ok"
    assert server.connections == 2


async def test_a_connection_that_the_server_closed_meanwhile_is_not_used_again() -> None:
    server = Server(OK + b"|", OK)
    async with server.serving() as connections:
        await connections.post(b"/", b"{}", 5)
        await server.closed.wait()
        await asyncio.sleep(0.05)
        await connections.post(b"/", b"{}", 5)
    assert server.connections == 2


async def test_a_kept_connection_that_the_server_closes_at_the_next_request_is_replaced_at_once() -> None:
    server = Server(OK, None, OK)
    async with server.serving() as connections:
        for _ in range(2):
            assert (await connections.post(b"/", b"{}", 5)).body == b"ok"
    assert server.connections == 2
    assert len(server.requests) == 3


async def test_the_late_response_of_a_cancelled_call_is_not_taken_for_the_next_one() -> None:
    server = Server(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nla", OK)
    async with server.serving() as connections:
        first = asyncio.create_task(connections.post(b"/", b"{}", 5))
        await until(lambda: server.requests)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert (await connections.post(b"/", b"{}", 5)).body == b"ok"
        with pytest.raises(NoAnswer, match="no response within"):
            server.answers = [b"HTTP/1.1 200 OK\r\n"]
            await connections.post(b"/", b"{}", 0.05)


async def test_there_are_at_most_so_many_connections() -> None:
    server = Server(OK)
    async with server.serving(size=3) as connections:
        await asyncio.gather(*(connections.post(b"/", b"{}", 5) for _ in range(30)))
    assert server.connections == 3


async def test_an_unused_connection_is_closed() -> None:
    server = Server(OK)
    async with server.serving(keep_alive=0.05) as connections:
        await connections.post(b"/", b"{}", 5)
        async with asyncio.timeout(10):
            await server.closed.wait()


async def test_closing_ends_calls_under_way_and_calls_that_wait_for_a_connection() -> None:
    server = Server(b"HTTP/1.1 200 OK\r\n")
    async with server.serving(size=1) as connections:
        calls = [asyncio.create_task(connections.post(b"/", b"{}", 5)) for _ in range(3)]
        await until(lambda: server.requests)
        await connections.close()
        ended = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(error) for error in ended] == [NoAnswer] * 3


async def test_a_header_for_the_time_to_wait() -> None:
    server = Server(b"HTTP/1.1 429 Too Many\r\nRetry-After: 7\r\ncontent-length: 0\r\n\r\n")
    async with server.serving() as connections:
        assert await connections.post(b"/", b"{}", 5) == (429, "7", b"")


async def test_a_connection_that_succeeds_while_it_is_cancelled_is_closed() -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        ended.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        for steps in range(12):
            ended.clear()
            connections = Connections(f"http://127.0.0.1:{port}", context=None, size=1, keep_alive=30.0)
            call = asyncio.create_task(connections.post(b"/", b"{}", 30.0))
            await yields(steps)
            call.cancel()
            await asyncio.wait((call,))
            connected = bool(connections._opening)
            await connections.close()
            if connected:
                await asyncio.wait_for(ended.wait(), 30)
            gc.collect()


async def test_a_connection_with_bytes_after_the_response_is_not_used_again() -> None:
    server = Server(OK + b"extra", OK)
    async with server.serving() as connections:
        for _ in range(2):
            assert (await connections.post(b"/", b"{}", 5)).body == b"ok"
    assert server.connections == 2


async def test_each_call_has_its_own_timeout_on_a_connection_that_is_used_again() -> None:
    server = Server(OK, b"HTTP/1.1 200 OK\r\n")
    async with server.serving() as connections:
        # Its timer is still set for the next call.
        await connections.post(b"/", b"{}", 30)
        with pytest.raises(NoAnswer, match=r"no response within 0\.05 s"):
            await connections.post(b"/", b"{}", 0.05)
    server = Server(OK, b"HTTP/1.1 200 OK\r\n|content-length: 2\r\n\r\nok", OK)
    async with server.serving() as connections:
        await connections.post(b"/", b"{}", 0.05)
        await asyncio.sleep(0.04)
        # The timer of the first call fires during this one, or before.
        assert (await connections.post(b"/", b"{}", 30)).body == b"ok"
        await asyncio.sleep(0.05)
        assert (await connections.post(b"/", b"{}", 30)).body == b"ok"
    assert server.connections == 1


async def test_a_cancelled_call_gives_its_place_to_the_next_one() -> None:
    server = Server(b"HTTP/1.1 200 OK\r\n", OK)
    async with server.serving(size=1) as connections:
        calls = [asyncio.create_task(connections.post(b"/", b"{}", 30)) for _ in range(4)]
        await until(lambda: server.requests)
        # The second call waits; the third gets the place of the first, and is cancelled at the same moment.
        calls[1].cancel()
        calls[0].cancel()
        await asyncio.wait(calls[:1])
        calls[2].cancel()
        async with asyncio.timeout(30):
            assert (await calls[3]).body == b"ok"
            await asyncio.wait(calls)
    assert all(call.cancelled() for call in calls[:3])
