"""Access to a page: a token, which a session cookie replaces; allowed host names; same origin only.

The checks run before every route, unknown ones included.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from html import escape
from typing import Any

from stepwell.web.http import PlainTextResponse, Request, Response

__all__ = ["HEADERS", "AuthMiddleware"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

#: Sent with every response. There is no CORS header.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
_NO_SESSION = "This browser has no session. Open the link that the terminal shows; it ends in ?token=...\n"
_USED = "This link was already used, and each link works once. The terminal shows a new one; in the demo, type /link.\n"
# A page, not a redirect: after a redirect from another site the browser would not send a Strict cookie.
_OPENED = """<!doctype html><html lang="en"><meta http-equiv="refresh" content="0;url={root}/"><title>Stepwell</title>
<link rel="icon" href="{root}/icon.svg"><a href="{root}/">Continue</a></html>
"""


class AuthMiddleware:
    """ASGI middleware that authenticates every request.

    ``is_allowed`` decides about the Host header, ``schemes`` about the Origin header. A ``reusable`` token opens any
    number of sessions, and all processes with this token accept them; any other token opens one.
    """

    def __init__(
        self,
        app: Any,
        is_allowed: Callable[[str], bool],
        *,
        token: str | None = None,
        reusable: bool = False,
        schemes: Collection[str] = ("http",),
        on_new_token: Callable[[], None] | None = None,
    ) -> None:
        self._app = app
        self._is_allowed = is_allowed
        self._schemes = schemes
        #: Opens a session in one browser. It is replaced when it was used, unless it is reusable.
        self.token: str = token or secrets.token_urlsafe(24)
        self._reusable = reusable
        self._used: list[str] = []
        self._on_new_token = on_new_token
        # A second secret for the cookie, because browsers keep the token in their history.
        self._session = (
            hmac.new(self.token.encode(), b"stepwell session", "sha256").hexdigest()
            if reusable
            else secrets.token_urlsafe(24)
        )

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
        """Return the response that refuses a request or opens a session; ``None`` if the request is allowed."""
        request = Request(scope)
        headers = request.headers
        host = headers.getlist("host")
        if len(host) != 1 or not self._is_allowed(host[0]):
            return PlainTextResponse("This host name is not allowed; allow it with --allow-host NAME.\n", 403)
        writes = scope["method"] not in ("GET", "HEAD")
        origins = headers.getlist("origin")
        own = {f"{scheme}://{host[0]}" for scheme in self._schemes}
        if not own.issuperset(origins) or (writes and len(origins) != 1):
            return PlainTextResponse("Requests from other origins are not allowed.\n", 403)
        kinds = headers.getlist("content-type")
        if any(kind.partition(";")[0].strip().lower() != "application/json" for kind in kinds) or (
            writes and not kinds
        ):
            return PlainTextResponse("The content type must be application/json.\n", 415)
        if _same(request.cookies.get(_cookie_name(host[0]), ""), self._session):
            return None
        token = request.query_params.get("token", "")
        root = scope.get("root_path", "").rstrip("/")
        # Servers and frameworks differ in whether the path has the prefix of a mounted application.
        if scope["path"] in ("/", f"{root}/") and scope["method"] == "GET":
            if _same(token, self.token):
                return self._open_session(host[0], root, is_secure=scope.get("scheme") == "https")
            if any(_same(token, used) for used in self._used):
                return PlainTextResponse(_USED, 401)
        return PlainTextResponse(_NO_SESSION, 401)

    def _open_session(self, host: str, root: str, *, is_secure: bool) -> Response:
        if not self._reusable:
            self._used.append(self.token)
            self.token = secrets.token_urlsafe(24)
            if self._on_new_token is not None:
                self._on_new_token()
        response = Response(_OPENED.format(root=escape(root)), media_type="text/html")
        response.set_cookie(
            _cookie_name(host), self._session, httponly=True, samesite="strict", secure=is_secure, path=f"{root}/"
        )
        return response


def _cookie_name(host: str) -> str:
    # Browsers share cookies between ports: with one name, two servers would overwrite each other's.
    return f"stepwell-{host.rpartition(':')[2]}"


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())
