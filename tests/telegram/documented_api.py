"""A small Bot API server, written from Telegram's documentation: methods for texts, and the limits of its FAQ.

It shares nothing with ``stepwell.botapi``, so that what one of them misunderstands, the other does not.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

__all__ = ["DocumentedAPI"]


class DocumentedAPI:
    """Serves one bot. The clock is that of the event loop."""

    def __init__(self) -> None:
        self.url = ""
        #: Every request: its time, method, parameters and status.
        self.requests: list[tuple[float, str, dict[str, Any], int]] = []
        #: The messages of the bot, by chat and id.
        self.messages: dict[tuple[int, int], dict[str, Any]] = {}
        #: The draft that each user sees.
        self.drafts: dict[int, dict[str, Any]] = {}
        self._refuse_until: dict[int, float] = {}
        self._sent: defaultdict[int, deque[float]] = defaultdict(deque)
        self._next_id = 1
        self._asked: dict[int, tuple[int, float]] = {}

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[DocumentedAPI]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}"
        try:
            yield self
        finally:
            server.close()

    def ask_to_wait(self, chat: int, seconds: int, *, after: int) -> None:
        """Answer the request with this number to a chat, and those of the seconds after it, with 429."""
        self._asked[chat] = (after, seconds)

    def texts(self, chat: int) -> list[str]:
        return [each["text"] for (where, _), each in sorted(self.messages.items()) if where == chat]

    def times(self, method: str, status: int = 200) -> list[float]:
        return [at for at, name, _, code in self.requests if (name, code) == (method, status)]

    def statuses(self) -> set[int]:
        return {status for *_, status in self.requests}

    # The server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                headers = {
                    name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                method = lines[0].split()[1].rpartition("/")[2]
                status, answer = self._answer(method, json.loads(body or b"{}"))
                content = json.dumps(answer).encode()
                about = f"Content-Type: application/json\r\nContent-Length: {len(content)}"
                writer.write(f"HTTP/1.1 {status} X\r\n{about}\r\n\r\n".encode() + content)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _answer(self, method: str, params: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        now = asyncio.get_running_loop().time()
        code, result = self._call(method, params, now)
        self.requests.append((now, method, params, code))
        if code == 200:
            return 200, {"ok": True, "result": result}
        error: dict[str, Any] = {"ok": False, "error_code": code, "description": result}
        if code == 429:
            seconds = int(result.rpartition(" ")[2])
            error["parameters"] = {"retry_after": seconds}
        return code, error

    def _call(self, method: str, params: dict[str, Any], now: float) -> tuple[int, Any]:
        chat = params.get("chat_id", 0)
        if wait := self._wait(method, chat, now):
            return 429, f"Too Many Requests: retry after {wait}"
        text = params.get("text", "")
        if len(text.encode("utf-16-le")) // 2 > 4096:
            return 400, "Bad Request: message is too long"
        if params.get("parse_mode") == "HTML" and text.count("<") != 2 * text.count("</"):
            return 400, "Bad Request: can't parse entities: Can't find end tag"
        if method == "sendMessageDraft":
            if chat < 0:
                return 400, "Bad Request: the method is available in private chats only"
            self.drafts[chat] = params
            return 200, True
        if method == "deleteMessage":
            if self.messages.pop((chat, params.get("message_id", 0)), None) is None:
                return 400, "Bad Request: message to delete not found"
            return 200, True
        if method == "getChat":
            return 200, {"id": chat}
        # Telegram removes the spaces around a text.
        text = text.strip()
        if not text:
            return 400, "Bad Request: message text is empty"
        if method == "sendMessage":
            message = {"message_id": self._next_id, "chat": {"id": chat}, "date": int(now), **params, "text": text}
            self._next_id += 1
            self.messages[chat, message["message_id"]] = message
            # A message of the bot replaces the draft.
            self.drafts.pop(chat, None)
            return 200, message
        found = self.messages.get((chat, params.get("message_id", 0)))
        if method != "editMessageText":
            return 404, "Not Found"
        if found is None:
            return 400, "Bad Request: message to edit not found"
        if found["text"] == text and found.get("entities") == params.get("entities"):
            return 400, "Bad Request: message is not modified"
        found.update(params, text=text)
        return 200, found

    def _wait(self, method: str, chat: int, now: float) -> int:
        """Return the seconds to wait: as a test asks for, and after more than 20 messages and edits a minute."""
        number = 1 + sum(params.get("chat_id") == chat for _, _, params, _ in self.requests)
        after, seconds = self._asked.get(chat, (0, 0.0))
        if after and number >= after:
            del self._asked[chat]
            self._refuse_until[chat] = now + seconds
        if (until := self._refuse_until.get(chat, 0.0)) > now:
            return int(until - now + 0.999)
        if chat < 0:
            sent = self._sent[chat]
            while sent and sent[0] <= now - 60:
                sent.popleft()
            if len(sent) >= 20:
                return int(sent[0] + 60 - now) + 1
            sent.append(now)
        return 0
