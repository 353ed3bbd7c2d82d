"""Calls of the Bot API: ours, and those of aiogram and httpx, to the same server in a process of its own.

The server answers immediately with a fixed message, so the figures are those of the clients.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from aiogram import Bot
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer

from stepwell import SQLiteStorage
from stepwell.telegram import BotClient, broadcast

TOKEN = "1:x"
CHATS, CALLS, SECONDS = 50, 3000, 10
#: The least ratio of aiogram's CPU time to ours, and the most percent of a core for a broadcast at the full rate.
TARGET, MOST_CPU = 3, 10

SERVER = r"""
import asyncio
BODY = b'{"ok":true,"result":{"message_id":1,"date":1,"chat":{"id":1,"type":"private"},"text":"hello"}}'
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)

class Answering(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.received = transport, b""

    def data_received(self, data):
        self.received += data
        head, end, body = self.received.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if end and len(body) >= int(length or 0):
            self.received = b""
            self.transport.write(ANSWER)

async def main():
    server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


async def main() -> int:
    """Print each figure beside its bound; the number of bounds missed."""
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        ours, theirs = await stepwell_calls(url), await aiogram_calls(url)
        await httpx_calls(url)
        cpu = await broadcast_at_full_rate(url)
    finally:
        server.kill()
        server.wait()
    print(f"{'CPU time of aiogram for one call of ours':44} {theirs / ours:10.1f}  (at least {TARGET})")
    print(f"{'CPU of a broadcast at the full rate':44} {cpu:10.2f} % (at most {MOST_CPU})")
    return (theirs < TARGET * ours) + (cpu > MOST_CPU)


async def rate(name: str, send: Callable[[int], Awaitable[Any]], calls: int = CALLS) -> float:
    """Send from all chats at once; return the CPU time of one call in microseconds."""
    numbers = iter(range(calls))

    async def chat(chat_id: int) -> None:
        for _ in numbers:
            await send(chat_id)

    cpu, began = time.process_time(), time.perf_counter()
    await asyncio.gather(*(chat(number + 1) for number in range(CHATS)))
    a_second = calls / (time.perf_counter() - began)
    each = (time.process_time() - cpu) / calls * 1e6
    print(f"{name:44} {a_second:10.0f} calls a second, {each:6.0f} us of CPU each")
    return each


async def stepwell_calls(url: str) -> float:
    async with BotClient(TOKEN, api=url, limits=None) as client:
        return await rate("BotClient", lambda chat: client.call("sendMessage", chat_id=chat, text="hello"))


async def aiogram_calls(url: str) -> float:
    bot = Bot(TOKEN, session=AiohttpSession(api=TelegramAPIServer.from_base(url)))
    try:
        return await rate("aiogram", lambda chat: bot.send_message(chat, "hello"))
    finally:
        await bot.session.close()


async def httpx_calls(url: str) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        path = f"{url}/bot{TOKEN}/sendMessage"
        await rate("httpx", lambda chat: client.post(path, json={"chat_id": chat, "text": "hello"}), CALLS // 10)


async def broadcast_at_full_rate(url: str) -> float:
    """Run a durable broadcast at the default limits; return the CPU time in percent of one core."""
    with tempfile.TemporaryDirectory() as folder:
        async with BotClient(TOKEN, api=url) as client, SQLiteStorage(f"{folder}/bot.db") as storage:
            cpu, began = time.process_time(), time.perf_counter()
            result = await broadcast(client, range(1, 30 * SECONDS + 1), "hello", storage=storage, flow_id="news")
            seconds = time.perf_counter() - began
            used = (time.process_time() - cpu) / seconds * 100
    print(f"{'broadcast on SQLite, limit 30 a second':44} {result.sent / seconds:10.1f} messages a second")
    return used
