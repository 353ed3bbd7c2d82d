"""Requests of one connection that arrive at once or in pieces get their responses in order."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlsplit

import httpx
import pytest

from stepwell.botapi import Bot, BotAPI


def request_for(api: BotAPI, bot: Bot, method: str, *, header: str = "", body: bytes = b"{}") -> bytes:
    head = (
        f"POST /bot{bot.token}/{method} HTTP/1.1\r\nHost: {urlsplit(api.url).netloc}\r\n{header}"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def response(reader: asyncio.StreamReader) -> object:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return json.loads(await reader.readexactly(length))


async def test_requests_at_once_in_pieces_and_mixed_are_answered_in_order() -> None:
    async with BotAPI() as api, asyncio.timeout(30):
        bot = api.bot("my_bot")
        commands, me = request_for(api, bot, "getMyCommands"), request_for(api, bot, "getMe")
        parsed = request_for(api, bot, "getMe", header="Expect-Nothing: 1\r\nExpect-Nothing: 2\r\n")
        poll = request_for(api, bot, "getUpdates", body=b'{"timeout": 1}')
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        # The poll waits, so the rest arrives while its response is under way.
        writer.write(poll)
        await asyncio.sleep(0)
        pieces = me[:20], me[20:] + parsed, parsed[:-1], parsed[-1:] + commands + me
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        found = [await response(reader) for _ in range(6)]
        writer.close()
        await writer.wait_closed()
    kinds = [list(each["result"])[:1] for each in found if isinstance(each, dict)]
    assert kinds == [[], ["id"], ["id"], ["id"], [], ["id"]]


@pytest.mark.parametrize(("token", "status"), [("1:unknown", 401), ("nonsense", 404)])
async def test_refusals_are_the_same_with_and_without_a_query(token: str, status: int) -> None:
    async with BotAPI() as api, httpx.AsyncClient(trust_env=False) as client:
        bot = api.bot("my_bot")
        bot.limit(3, method="getMe", times=2)
        for path, expected in (
            (f"/bot{token}/getMe", status),
            (f"/bot{bot.token}/getMe", 429),
            (f"/bot{bot.token}/nothing", 404),
            ("/else", 404),
        ):
            for query in ("", "?a=b"):
                refused = await client.post(f"{api.url}{path}{query}", json={})
                assert refused.status_code == expected == refused.json()["error_code"]
                assert refused.headers.get("Retry-After") == ("3" if expected == 429 else None)
