"""Who is let in to the page: this machine's person with the token, from this page, under an allowed name.

The guard stands before every route, those that do not exist included.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from stepwell.playground.web import PlainTextResponse, Response

__all__ = ["HEADERS", "AuthMiddleware"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}
#: Sent with every answer. There is no CORS header among them, and none is ever added.
HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in _POLICY.items()),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
_DOOR = "Open the address that the terminal shows: it ends in ?token=... and lets this browser in.\n"
# A page of ours that leads on, not a redirect: after a redirect from elsewhere a Strict cookie is not sent.
_USED = (
    "This address has let a browser in already, and works once. Use that browser, or start the playground again "
    "for a new address.\n"
)
_WELCOME = """<!doctype html><html lang="en"><meta http-equiv="refresh" content="0;url=/"><title>Stepwell</title>
<link rel="icon" href="/icon.svg"><a href="/">Go on</a></html>
"""


class AuthMiddleware:
    """An ASGI application around another."""

    def __init__(self, app: Any, hosts: Callable[[], Iterable[str]], *, token: str | None = None) -> None:
        self._app = app
        self._hosts = hosts
        #: What the address carries. The first browser that opens the address is let in; nobody after it.
        self.token = token or secrets.token_urlsafe(24)
        self._used = False
        # What the browser keeps is another secret: the token of an address gets into histories.
        self._session = secrets.token_urlsafe(24)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"only HTTP is served here, not {scope['type']}")
        answer = self._answer(scope)

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                added = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        await (self._app if answer is None else answer)(scope, receive, with_headers)

    def _answer(self, scope: Scope) -> Response | None:
        """What to say instead of letting a request in."""
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        host = headers.get("host", [])
        if len(host) != 1 or host[0] not in set(self._hosts()):
            return PlainTextResponse("This name is not allowed here.\n", 403)
        writes = scope["method"] not in ("GET", "HEAD")
        origins = headers.get("origin", [])
        if any(origin != f"http://{host[0]}" for origin in origins) or (writes and len(origins) != 1):
            return PlainTextResponse("Only this page itself may ask.\n", 403)
        kinds = headers.get("content-type", [])
        if any(kind.partition(";")[0].strip().lower() != "application/json" for kind in kinds) or (
            writes and not kinds
        ):
            return PlainTextResponse("Only application/json is read here.\n", 415)
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token")
        if _same(self._cookie(headers.get("cookie", []), host[0]), self._session):
            return None
        if token and scope["path"] == "/" and scope["method"] == "GET" and _same(token[0], self.token):
            return PlainTextResponse(_USED, 401) if self._used else self._let_in(host[0])
        return PlainTextResponse(_DOOR, 401)

    def _let_in(self, host: str) -> Response:
        self._used = True
        response = Response(_WELCOME, media_type="text/html")
        response.set_cookie(_name(host), self._session, httponly=True, samesite="strict", path="/")
        return response

    def _cookie(self, given: list[str], host: str) -> str:
        cookies: SimpleCookie = SimpleCookie()
        try:
            for each in given:
                cookies.load(each)
        except CookieError:
            return ""
        found = cookies.get(_name(host))
        return "" if found is None else found.value


def _name(host: str) -> str:
    # Cookies do not know ports: two playgrounds must not throw each other out.
    return f"stepwell-{host.rpartition(':')[2]}"


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())
