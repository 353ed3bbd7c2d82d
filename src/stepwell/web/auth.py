"""Access to a page: a token, which a session cookie replaces; allowed host names; same origin only.

The checks run before every route, unknown ones included.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass, field
from html import escape
from typing import Any, Final

from stepwell.errors import InvalidOption
from stepwell.web.error_page import STYLE_HASH, error_response
from stepwell.web.http import Request, Response

__all__ = ["GROUPS", "HEADERS", "SHORTEST_TOKEN", "USER", "AuthMiddleware", "TrustedProxy"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

#: The key of the scope with the name of the session's token; empty for a random token. And the key with the groups that
#: a proxy names, which is missing in other sessions.
USER: Final = "stepwell.user"
GROUPS: Final = "stepwell.groups"
#: The fewest characters of a token that is given.
SHORTEST_TOKEN: Final = 16
#: Sent with every response. There is no CORS header.
HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src 'self'; style-src 'self' {STYLE_HASH}; img-src 'self'; font-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
_NO_SESSION = "This browser has no session. Open the link that the terminal shows; it ends in ?token=..."
_USED = "This link was already used, and each link works once. The terminal shows a new one; in the demo, type /link."
#: The most characters of the name of a person.
LONGEST_NAME: Final = 200
# A page, not a redirect: after a redirect from another site the browser would not send a Strict cookie.
_OPENED = """<!doctype html><html lang="en"><meta http-equiv="refresh" content="0;url={root}/"><title>Stepwell</title>
<link rel="icon" href="{root}/icon.svg"><a href="{root}/">Continue</a></html>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedProxy:
    """A server in front that has checked who somebody is, and says so in headers of each request.

    ``secret``: at least 16 random characters, which the proxy sends in the header ``secret_header``. Who does not know
    it is not believed. ``user``: the header with the name of the person. ``groups``: the header with the roles or
    groups of the person, separated by commas. The proxy must replace these headers, also if the client has sent them.

    Example::

        from stepwell.inspector import TrustedProxy

        proxy = TrustedProxy(secret="at least 16 random characters", user="X-Forwarded-Email")
        app = inspector(storage, [Registration], proxy=proxy, roles={"anna@example.com": "admin"})
    """

    secret: str = field(repr=False)
    user: str = "X-Forwarded-User"
    groups: str | None = None
    secret_header: str = "X-Stepwell-Proxy"  # noqa: S105 the name of a header

    def __post_init__(self) -> None:
        if len(self.secret) < SHORTEST_TOKEN:
            raise InvalidOption(
                f"the secret of the proxy has {len(self.secret)} characters; give at least {SHORTEST_TOKEN} random ones"
            )

    def person(self, headers: Any) -> tuple[str, tuple[str, ...]] | None:
        """Return the name and the groups of the person; ``None`` if the request is not from the proxy."""
        secret, names = headers.getlist(self.secret_header), headers.getlist(self.user)
        groups = [] if self.groups is None else headers.getlist(self.groups)
        # A header that is there twice is perhaps one of the client and one of the proxy.
        if len(secret) != 1 or not _same(secret[0], self.secret) or len(names) != 1 or len(groups) > 1:
            return None
        name = names[0].strip()
        if not name or len(name) > LONGEST_NAME:
            return None
        return name, tuple(each.strip() for each in ",".join(groups).split(",") if each.strip())


class AuthMiddleware:
    """ASGI middleware that authenticates every request.

    ``is_allowed`` decides about the Host header, ``schemes`` about the Origin header. ``tokens`` are tokens by the name
    of their owner: each opens any number of sessions, and all processes with this token accept them. The name is
    passed on in the scope as ``USER``. Without ``tokens``, a token opens one session: ``token``, then random ones.
    A program may read the paths ``for_scrapers`` with ``Authorization: Bearer`` and one of ``tokens``. A ``proxy``
    needs no session: it names the person in each request.
    """

    def __init__(
        self,
        app: Any,
        is_allowed: Callable[[str], bool],
        *,
        token: str | None = None,
        tokens: Mapping[str, str] | None = None,
        schemes: Collection[str] = ("http",),
        on_new_token: Callable[[], None] | None = None,
        for_scrapers: Collection[str] = (),
        proxy: TrustedProxy | None = None,
    ) -> None:
        self._app = app
        self._for_scrapers = for_scrapers
        self._proxy = proxy
        self._is_allowed = is_allowed
        self._schemes = schemes
        self._tokens = dict(tokens or {})
        #: Opens a session in one browser. It is replaced when it was used, unless tokens were given.
        self.token: str = next(iter(self._tokens.values()), token) or secrets.token_urlsafe(24)
        self._used: list[str] = []
        self._on_new_token = on_new_token
        # A second secret for the cookie, because browsers keep the token in their history.
        self._sessions = {
            name: hmac.new(token.encode(), b"stepwell session", "sha256").hexdigest()
            for name, token in self._tokens.items()
        } or {"": secrets.token_urlsafe(24)}

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
            text = "This host name is not allowed; allow it with --allow-host NAME."
            return error_response(request, 403, "Host name not allowed", text)
        writes = scope["method"] not in ("GET", "HEAD")
        origins = headers.getlist("origin")
        own = {f"{scheme}://{host[0]}" for scheme in self._schemes}
        if not own.issuperset(origins) or (writes and len(origins) != 1):
            return error_response(request, 403, "Not allowed", "Requests from other origins are not allowed.")
        kinds = headers.getlist("content-type")
        if any(kind.partition(";")[0].strip().lower() != "application/json" for kind in kinds) or (
            writes and not kinds
        ):
            return error_response(request, 415, "Not supported", "The content type must be application/json.")
        if self._proxy is not None and (person := self._proxy.person(headers)) is not None:
            scope[USER], scope[GROUPS] = person
            return None
        cookie = request.cookies.get(_cookie_name(host[0]), "")
        owner = _owner(cookie, self._sessions)
        root = scope.get("root_path", "").rstrip("/")
        if owner is None and not writes and scope["path"].removeprefix(root) in self._for_scrapers:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            owner = _owner(given.strip(), self._tokens) if scheme.lower() == "bearer" else None
        if owner is not None:
            scope[USER] = owner
            return None
        token = request.query_params.get("token", "")
        # Servers and frameworks differ in whether the path has the prefix of a mounted application.
        if scope["path"] in ("/", f"{root}/") and scope["method"] == "GET":
            owner = _owner(token, self._tokens or {"": self.token})
            if owner is not None:
                return self._open_session(owner, host[0], root, is_secure=scope.get("scheme") == "https")
            if any(_same(token, used) for used in self._used):
                return error_response(request, 401, "This link was used", _USED)
        return error_response(request, 401, "No session", _NO_SESSION)

    def _open_session(self, owner: str, host: str, root: str, *, is_secure: bool) -> Response:
        if not self._tokens:
            self._used.append(self.token)
            self.token = secrets.token_urlsafe(24)
            if self._on_new_token is not None:
                self._on_new_token()
        response = Response(_OPENED.format(root=escape(root)), media_type="text/html")
        response.set_cookie(
            _cookie_name(host),
            self._sessions[owner],
            httponly=True,
            samesite="strict",
            secure=is_secure,
            path=f"{root}/",
        )
        return response


def _cookie_name(host: str) -> str:
    # Browsers share cookies between ports: with one name, two servers would overwrite each other's.
    return f"stepwell-{host.rpartition(':')[2]}"


def _owner(given: str, secrets_by_name: Mapping[str, str]) -> str | None:
    """Return the name with this secret. All are compared, so that the time does not depend on the position."""
    found = [name for name, secret in secrets_by_name.items() if _same(given, secret)]
    return found[0] if found else None


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())
