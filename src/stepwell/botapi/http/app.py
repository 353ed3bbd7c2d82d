"""The Bot API over HTTP: ``/bot<token>/<method>`` and files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

from stepwell.botapi.errors import ConnectionCut, Refusal
from stepwell.botapi.http.forms import read_body
from stepwell.botapi.http.packages import ClientDisconnect, JSONResponse, Request, Response, Route, Starlette
from stepwell.botapi.http.serving import CUT, Direct, PlainRequest
from stepwell.botapi.http.webhook import Webhooks
from stepwell.botapi.methods import perform
from stepwell.botapi.world import Bot, World

__all__ = ["make_app", "make_direct"]

#: The largest request in bytes: Telegram's limit for files.
MAX_REQUEST = 50 * 1024 * 1024


#: A call of ``HTTPStatus`` takes longer.
_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_METHOD_PATH = re.compile(r"/bot([^/?%]+)/(\w+)")
_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def make_direct(world: World, webhooks: Webhooks, hosts: Callable[[], Iterable[str]]) -> Direct:
    """Return the same as :func:`make_app` for plain method calls only."""

    async def respond(request: PlainRequest) -> bytes | None:
        path = _METHOD_PATH.fullmatch(request.target)
        headers = request.headers
        code, more = 200, ""
        try:
            if path is None:
                raise Refusal(404, "Not Found")
            bot = _bot_of(world, hosts, headers.get("host", ""), path[1])
            params = read_body(headers.get("content-type", ""), request.body)
            body = {"ok": True, "result": await perform(world, webhooks, bot, path[2], params)}
        except Refusal as refusal:
            code, body = refusal.code, refusal.json()
            more = "".join(f"{name}: {value}\r\n" for name, value in _headers(refusal).items())
        except ConnectionCut:
            return None
        content = _to_json(body).encode()
        head = (
            f"HTTP/1.1 {code} {_PHRASES.get(code, '')}\r\ncontent-type: application/json\r\n{more}"
            f"content-length: {len(content)}\r\n\r\n"
        )
        return head.encode() + content

    return respond


def make_app(world: World, webhooks: Webhooks, hosts: Callable[[], Iterable[str]]) -> Any:
    """Return an ASGI application that accepts only these Host headers, against DNS rebinding."""

    def checked(request: Request) -> Bot:
        return _bot_of(world, hosts, request.headers.get("host", ""), request.path_params["token"])

    async def method(request: Request) -> Response:
        try:
            bot = checked(request)
            body = await _body_of(request)
            if body is None:
                raise Refusal(413, "Request Entity Too Large")
            params = read_body(request.headers.get("content-type", ""), body, dict(request.query_params))
            result = await perform(world, webhooks, bot, request.path_params["method"], params)
        except Refusal as refusal:
            return _refused(refusal)
        except ConnectionCut:
            return _Cut()
        return JSONResponse({"ok": True, "result": result})

    async def file(request: Request) -> Response:
        try:
            checked(request)
            found = world.files.get(request.path_params["file_id"].partition(".")[0])
            if found is None:
                raise Refusal(404, "Not Found")
        except Refusal as refusal:
            return _refused(refusal)
        # Never with its own media type: a browser must not run it.
        return Response(
            found.content,
            media_type="application/octet-stream",
            headers={"X-Content-Type-Options": "nosniff", "Content-Disposition": "attachment"},
        )

    async def nothing(request: Request) -> Response:
        return _refused(Refusal(404, "Not Found"))

    return Starlette(
        routes=[
            Route("/bot{token}/{method}", method, methods=["GET", "POST"]),
            Route("/file/bot{token}/{kind}/{file_id}", file, methods=["GET"]),
            Route("/{path:path}", nothing, methods=["GET", "POST"]),
        ]
    )


class _Cut(Response):
    """Closes the connection instead of responding."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        scope["state"][CUT]()
        while (await receive())["type"] != "http.disconnect":
            pass


async def _body_of(request: Request) -> bytes | None:
    """Return the body of a request; ``None`` if it is too large or the client disconnected."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_REQUEST:
                return None
    except ClientDisconnect:
        return None
    return bytes(body)


def _bot_of(world: World, hosts: Callable[[], Iterable[str]], host: str, token: str) -> Bot:
    if host not in hosts():
        raise Refusal(403, "Forbidden: this host name is not allowed here")
    bot = world.bots.get(token)
    if bot is None:
        # As Telegram does: 401 for a well-formed token, 404 for anything else.
        number, colon, _ = token.partition(":")
        raise Refusal(401, "Unauthorized") if number.isdigit() and colon else Refusal(404, "Not Found")
    return bot


def _refused(refusal: Refusal) -> Response:
    return JSONResponse(refusal.json(), status_code=refusal.code, headers=_headers(refusal))


def _headers(refusal: Refusal) -> dict[str, str]:
    retry = refusal.parameters.get("retry_after")
    return {"Retry-After": str(retry)} if retry is not None else {}
