"""The Bot API over HTTP: ``/bot<token>/<method>`` and files."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qsl

from stepwell.botapi.errors import ConnectionCut, Refusal
from stepwell.botapi.http.forms import read_body
from stepwell.botapi.http.serving import CUT
from stepwell.botapi.http.webhook import Webhooks
from stepwell.botapi.methods import perform
from stepwell.botapi.world import Bot, World

__all__ = ["make_app"]

#: The largest request in bytes: Telegram's limit for files.
MAX_REQUEST = 50 * 1024 * 1024

_METHOD = re.compile(r"/bot([^/]+)/([^/]+)")
_FILE = re.compile(r"/file/bot([^/]+)/[^/]+/([^/.]+)[^/]*")
_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

_Receive: TypeAlias = Callable[[], Awaitable[dict[str, Any]]]
_Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]


class _Reply(NamedTuple):
    """A response."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = {"content-type": "application/json"}


#: Never with its own media type: a browser must not run it.
_OF_FILES = {
    "content-type": "application/octet-stream",
    "x-content-type-options": "nosniff",
    "content-disposition": "attachment",
}


def make_app(world: World, webhooks: Webhooks, hosts: Callable[[], Iterable[str]]) -> Any:
    """Return an ASGI application that accepts only these Host headers, against DNS rebinding."""

    async def reply(scope: Mapping[str, Any], receive: _Receive) -> _Reply:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if scope["method"] == "GET" and (file := _FILE.fullmatch(path)):
            _bot_of(world, hosts, headers, file[1])
            found = world.files.get(file[2])
            if found is None:
                raise Refusal(404, "Not Found")
            return _Reply(found.content, headers=_OF_FILES)
        call = _METHOD.fullmatch(path)
        if call is None or scope["method"] not in ("GET", "POST"):
            raise Refusal(404, "Not Found")
        bot = _bot_of(world, hosts, headers, call[1])
        body = await _body_of(receive)
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        params = read_body(headers.get("content-type", ""), body, query)
        result = await perform(world, webhooks, bot, call[2], params)
        return _Reply(_to_json({"ok": True, "result": result}).encode())

    async def app(scope: Mapping[str, Any], receive: _Receive, send: _Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError("the local Bot API serves HTTP only")
        try:
            response = await reply(scope, receive)
        except Refusal as refusal:
            response = _refused(refusal)
        except ConnectionCut:
            scope["state"][CUT]()
            return
        headers = {**response.headers, "content-length": str(len(response.body))}
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": response.status, "headers": pairs})
        await send({"type": "http.response.body", "body": response.body})

    return app


async def _body_of(receive: _Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        # A client that has disconnected gets no response.
        body += message.get("body", b"")
        if len(body) > MAX_REQUEST:
            raise Refusal(413, "Request Entity Too Large")
        if not message.get("more_body"):
            return bytes(body)


def _bot_of(world: World, hosts: Callable[[], Iterable[str]], headers: Mapping[str, str], token: str) -> Bot:
    if headers.get("host", "") not in hosts():
        raise Refusal(403, "Forbidden: this host name is not allowed here")
    bot = world.bots.get(token)
    if bot is None:
        # As Telegram does: 401 for a well-formed token, 404 for anything else.
        number, colon, _ = token.partition(":")
        raise Refusal(401, "Unauthorized") if number.isdigit() and colon else Refusal(404, "Not Found")
    return bot


def _refused(refusal: Refusal) -> _Reply:
    retry = refusal.parameters.get("retry_after")
    more = {} if retry is None else {"retry-after": str(retry)}
    return _Reply(_to_json(refusal.json()).encode(), refusal.code, {"content-type": "application/json", **more})
