"""A Bot API server whose updates are bytes, valid or not, with a proxy that answers in its place."""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple, Self, cast
from urllib.parse import parse_qsl

#: What a proxy answers: its status and its page.
PAGES = {
    "404": (404, b"<html><h1>404 Not Found</h1></html>"),
    "403": (403, b"<html><h1>403 Forbidden</h1></html>"),
    "502": (502, b"<html><h1>502 Bad Gateway</h1></html>"),
    "200": (200, b"<html><form>Please log in to this network</form></html>"),
    "401": (401, b"<html><h1>401 Unauthorized</h1></html>"),
    "Latin-1": (503, "<html><h1>Indisponible: service fermé</h1></html>".encode("latin-1")),
}


class RawUpdate(NamedTuple):
    """An update in Telegram's queue. ``number`` is its id, whatever the bytes say."""

    number: int
    raw: bytes
    #: The body of the answer ends after this update.
    ends_body: bool = False


def message(number: int, chat: int, text: str) -> RawUpdate:
    """Return an ordinary message."""
    peer = {"id": chat, "type": "private", "first_name": "Alice"}
    event = {"message_id": number, "date": 1, "chat": peer, "from": peer, "text": text}
    return RawUpdate(number, json.dumps({"update_id": number, "message": event}).encode())


class RawTelegram:
    """The server. Its bots need no token that it knows."""

    def __init__(self) -> None:
        self.queue: list[RawUpdate] = []
        #: The texts that each chat got.
        self.sent: dict[int, list[str]] = {}
        #: Pages that the proxy answers with before the next call gets through, by method.
        self.pages: dict[str, deque[tuple[int, bytes]]] = {}
        #: How many pages were given.
        self.given = 0
        #: The body of the next answers to sendMessage, instead of the usual ones.
        self.results: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def put(self, *updates: RawUpdate) -> None:
        self.queue += updates
        self._news.set()

    def block(self, page: tuple[int, bytes], times: int, *methods: str) -> None:
        """Let the proxy answer the next calls of these methods."""
        for method in methods:
            self.pages.setdefault(method, deque()).extend([page] * times)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                request = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                length = re.search(r"content-length: *(\d+)", request.lower())
                size = int(length[1]) if length else 0
                method = request.split(" ")[1].rpartition("/")[2]
                status, body = await self._answer(method, _params_of(request, await reader.readexactly(size)))
                kind = b"text/html" if body.startswith(b"<") else b"application/json"
                head = b"HTTP/1.1 %d -\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
                writer.write(head % (status, kind, len(body)) + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            # A cancelled task would be logged by asyncio's streams.
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, method: str, params: dict[str, Any]) -> tuple[int, bytes]:
        if pages := self.pages.get(method):
            self.given += 1
            return pages.popleft()
        if method == "getUpdates":
            return 200, await self._updates(**params)
        if method == "sendMessage":
            self.sent.setdefault(params["chat_id"], []).append(params["text"])
            if self.results:
                return 200, self.results.popleft()
        chat = {"id": params.get("chat_id", 1), "type": "private", "first_name": "Alice"}
        user = {"id": 1, "is_bot": True, "first_name": "bot", "username": "my_bot"}
        result = user if method == "getMe" else {"message_id": 1, "date": 1, "chat": chat}
        return 200, json.dumps({"ok": True, "result": result}).encode()

    async def _updates(self, offset: int, limit: int, timeout: float, **other: Any) -> bytes:
        if offset < 0:
            self.queue = self.queue[offset:]
        self.queue = [update for update in self.queue if update.number >= offset]
        if not self.queue:
            self._news.clear()
            try:
                async with asyncio.timeout(min(timeout, 0.5)):
                    await self._news.wait()
            except TimeoutError:
                pass
        return b'{"ok":true,"result":[' + b",".join(_body_of(self.queue[:limit]))


def _params_of(head: str, body: bytes) -> dict[str, Any]:
    """Read JSON, or the forms in which the clients of frameworks send the parameters."""
    if "application/json" in head:
        return cast("dict[str, Any]", json.loads(body))
    found = re.findall(r'name="(\w+)".*?\r\n\r\n(.*?)\r\n', body.decode(), re.DOTALL) or parse_qsl(body.decode())
    return {name: int(value) if value.isdigit() else value for name, value in found}


def _body_of(updates: list[RawUpdate]) -> Iterator[bytes]:
    for update in updates:
        if update.ends_body:
            yield update.raw
            return
        yield update.raw + (b"]}" if update is updates[-1] else b"")
    if not updates:
        yield b"]}"
