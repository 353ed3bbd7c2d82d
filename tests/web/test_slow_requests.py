"""Requests that never end, at the local Bot API and at a page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import httpx
import pytest

from stepwell.botapi import BotAPI
from stepwell.botapi.http import serving as botapi_serving
from stepwell.playground.play import Playground
from stepwell.web import serving as web_serving
from stepwell.web.http import JSONResponse, Request, Response, Route, Starlette, body_of
from tests.constants import Constants

CAFE = Path(__file__).parents[1] / "playground" / "cafe.py"
TOKEN = "123456:secret"
PATH = f"/bot{TOKEN}/getMe"
HEADERS_OF_A_POST = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n".encode()
both_servers = pytest.mark.parametrize("server", ["bot api", "page"])


@asynccontextmanager
async def running(server: str) -> AsyncIterator[int]:
    """Start a server, and yield its port."""
    if server == "bot api":
        async with BotAPI() as api:
            api.bot("my_bot", token=TOKEN)
            yield api.port
        return

    async def page(request: Request) -> Response:
        await body_of(request, 1000)
        return JSONResponse({"of": {}})

    serving = web_serving.Serving(Starlette(routes=[Route(PATH, page, methods=["GET", "POST"])]), name="page")
    yield await serving.start("127.0.0.1", 0)
    await serving.stop()


def set_time(monkeypatch: pytest.MonkeyPatch, name: str, seconds: float) -> None:
    for module in (botapi_serving, web_serving):
        monkeypatch.setattr(module, name, seconds)


def get(port: int) -> bytes:
    return f"GET {PATH} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()


@both_servers
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nHost: x\r\n",
        HEADERS_OF_A_POST + b"Content-Length: 100\r\n\r\n{",
        HEADERS_OF_A_POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
    ],
    ids=["nothing", "half a line", "half of the headers", "half of the body", "half of a chunk"],
)
async def test_an_incomplete_request_times_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, server: str, sent: bytes
) -> None:
    set_time(monkeypatch, "REQUEST_TIMEOUT", 0.3)
    async with running(server) as port, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent.replace(b"Host: x", f"Host: 127.0.0.1:{port}".encode()))
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        writer.close()
    assert not caplog.records


@both_servers
async def test_an_incomplete_second_request_on_a_connection_times_out(
    monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    set_time(monkeypatch, "REQUEST_TIMEOUT", 1.0)
    async with running(server) as port, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(get(port))
        assert b" 200 " in await reader.readuntil(b"}}")
        writer.write(b"GET / HT")
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        writer.close()


@both_servers
async def test_an_idle_connection_is_closed_later_than_clients_close_it(
    monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    async with aiohttp.ClientSession() as session:
        for module in (botapi_serving, web_serving):
            assert session.connector._keepalive_timeout < module.KEEP_ALIVE
    set_time(monkeypatch, "KEEP_ALIVE", 0.1)
    async with running(server) as port, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(get(port))
        assert b" 200 " in await reader.readuntil(b"}}")
        assert await reader.read() == b""
        writer.close()


@both_servers
async def test_slow_bytes_do_not_extend_the_timeout(monkeypatch: pytest.MonkeyPatch, server: str) -> None:
    set_time(monkeypatch, "REQUEST_TIMEOUT", 0.5)
    async with running(server) as port, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n")
        # Only its first bytes: the server may reset the connection when more headers arrive after its response.
        answered = asyncio.create_task(reader.readexactly(13))
        while not answered.done():
            writer.write(b"A: b\r\n")
            await asyncio.wait([answered], timeout=0.05)
        assert await answered == b"HTTP/1.1 408 "
        writer.close()


async def test_a_response_may_take_longer_than_the_request_timeout(
    monkeypatch: pytest.MonkeyPatch, constants: Constants, tmp_path: Path
) -> None:
    set_time(monkeypatch, "REQUEST_TIMEOUT", 1.0)
    constants(pages_heartbeat=0.1)
    async with Playground(CAFE, storage=f"sqlite:///{tmp_path}/play.db") as play, httpx.AsyncClient(timeout=60) as http:
        bot = play.api.bot("other_bot")
        polling = {"timeout": 2}
        assert (await http.post(f"{play.api.url}/bot{bot.token}/getUpdates", json=polling)).json()["result"] == []
        await http.get(play.url)
        beats = 0
        async with http.stream("GET", f"{play.address}events") as events:
            async for line in events.aiter_lines():
                beats += line == ": here"
                if beats == 15:
                    break
