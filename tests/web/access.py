"""Access to a page: the tests that the playground and the inspector share.

A test module has a class ``TestAccess(AccessTests)`` and a fixture ``guarded``.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from stepwell.web.auth import HEADERS
from stepwell.web.files import content_of

__all__ = ["METHODS", "AccessTests", "Guarded", "Route", "browsing", "status"]

Route = tuple[str, str]
#: Requests to the page itself that it does not serve.
METHODS: list[Route] = [(method, "/") for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH")]


class Guarded(NamedTuple):
    """A page with its middleware."""

    #: The ASGI application.
    app: Any
    #: The host that it allows, with its port.
    host: str
    #: Opens a session.
    token: str
    routes: list[Route]
    files: Mapping[str, Path]


@asynccontextmanager
async def browsing(guarded: Guarded, token: str | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a browser; with a token, it has a session."""
    transport = httpx.ASGITransport(app=guarded.app)
    async with httpx.AsyncClient(base_url=f"http://{guarded.host}", transport=transport) as client:
        if token is not None:
            assert (await client.get("/", params={"token": token})).status_code == 200
        yield client


async def status(client: httpx.AsyncClient, route: Route, **headers: str) -> int:
    """Request a route with the headers that the page sends, and with others; check the headers of the response."""
    method, path = route
    own = {"Origin": str(client.base_url).rstrip("/"), "Content-Type": "application/json"} if method != "GET" else {}
    response = await client.request(method, path, headers={**own, **headers})
    for name, value in HEADERS.items():
        assert response.headers[name] == value
    assert not [name for name in response.headers if name.startswith("access-control-")]
    return response.status_code


class AccessTests:
    """What every page refuses, on every route."""

    async def test_a_request_without_a_token_is_refused(self, guarded: Guarded) -> None:
        async with browsing(guarded) as stranger:
            for route in guarded.routes:
                assert (route, await status(stranger, route)) == (route, 401)

    async def test_a_wrong_token_is_refused(self, guarded: Guarded) -> None:
        token, name = guarded.token, f"stepwell-{guarded.host.rpartition(':')[2]}"
        async with browsing(guarded) as stranger:
            for method, path in guarded.routes:
                for wrong in ("wrong", "", token[:-1], f"{token}x", "é"):
                    given = method, f"{path}?token={wrong}"
                    assert (given, await status(stranger, given)) == (given, 401)
                for cookie in ("wrong", "", token.replace(" ", "_"), "a=b; \x7f", '"'):
                    code = await status(stranger, (method, path), Cookie=f"{name}={cookie}")
                    assert (method, path, cookie, code) == (method, path, cookie, 401)
            assert "set-cookie" not in (await stranger.get("/?token=wrong")).headers

    async def test_the_token_opens_nothing_but_the_page(self, guarded: Guarded) -> None:
        async with browsing(guarded) as stranger:
            for method, path in guarded.routes:
                if (method, path) != ("GET", "/"):
                    given = method, f"{path}?token={guarded.token}"
                    assert (given, await status(stranger, given)) == (given, 401)

    async def test_a_foreign_host_is_refused(self, guarded: Guarded) -> None:
        port = guarded.host.rpartition(":")[2]
        hosts = (
            "evil.example",
            f"evil.example:{port}",
            f"127.0.0.1.evil.example:{port}",
            "",
            f":{port}",
            "127.0.0.1@e",
        )
        async with browsing(guarded, guarded.token) as client:
            for route in guarded.routes:
                for host in hosts:
                    origin = {} if route[0] == "GET" else {"Origin": f"http://{host}"}
                    assert (route, host, await status(client, route, Host=host, **origin)) == (route, host, 403)

    async def test_a_foreign_origin_is_refused(self, guarded: Guarded) -> None:
        port = guarded.host.rpartition(":")[2]
        origins = ("http://evil.example", f"http://127.0.0.1:{int(port) + 1}", f"http://localhost:{port}", "null", "")
        async with browsing(guarded, guarded.token) as client:
            for route in guarded.routes:
                for origin in origins:
                    assert (route, origin, await status(client, route, Origin=origin)) == (route, origin, 403)

    async def test_another_content_type_is_refused(self, guarded: Guarded) -> None:
        form = "application/x-www-form-urlencoded"
        kinds = ("text/plain", form, "multipart/form-data; boundary=x", "application/jsonp", "")
        async with browsing(guarded, guarded.token) as client:
            for route in guarded.routes:
                for kind in kinds:
                    code = await status(client, route, **{"Content-Type": kind})
                    assert (route, kind, code) == (route, kind, 415)

    async def test_a_write_needs_an_origin_and_a_content_type(self, guarded: Guarded) -> None:
        async with browsing(guarded, guarded.token) as client:
            origin, kind = {"Origin": f"http://{guarded.host}"}, {"Content-Type": "application/json"}
            for method, path in guarded.routes:
                if method == "POST":
                    assert (await client.post(path, content=b"{}", headers=kind)).status_code == 403
                    assert (await client.post(path, content=b"{}", headers=origin)).status_code == 415

    async def test_a_session_has_an_http_only_strict_cookie_without_the_token(self, guarded: Guarded) -> None:
        async with browsing(guarded) as browser:
            assert (await browser.head("/", params={"token": guarded.token})).status_code == 401
            answer = await browser.get("/", params={"token": guarded.token})
            cookie = answer.headers["set-cookie"].lower()
            assert "httponly" in cookie
            assert "samesite=strict" in cookie
            assert "path=/;" in cookie
            assert guarded.token.lower() not in cookie
            assert guarded.token not in answer.text
            assert 'content="0;url=/"' in answer.text
            assert (await browser.get("/")).status_code == 200

    async def test_only_the_files_of_the_page_are_served(self, guarded: Guarded) -> None:
        async with browsing(guarded, guarded.token) as client:
            for path in ("/../app.py", "/%2e%2e/app.py", "/page/index.html", "/app.py", "//etc/passwd", "/..%2fapp.py"):
                assert (path, (await client.get(path)).status_code) == (path, 404)
            for path, file in guarded.files.items():
                answer = await client.get(path)
                assert (path, answer.status_code, answer.content) == (path, 200, content_of(file))

    def test_no_script_turns_a_value_into_markup(self, guarded: Guarded) -> None:
        markup = r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function|DOMParser"
        for path in _texts(guarded):
            assert not re.search(markup, content_of(path).decode()), path

    def test_the_page_has_no_inline_script_or_style_and_no_external_requests(self, guarded: Guarded) -> None:
        for path in _texts(guarded):
            text = re.sub(r"(?m)^\s*//.*$", "", content_of(path).decode())
            assert set(re.findall(r"(?:https?:)?//[\w.]+\.\w+[^\s\"'`)]*", text)) <= {"http://www.w3.org/2000/svg"}, (
                path
            )
        page = content_of(guarded.files["/index.html"]).decode()
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", page)


def _texts(guarded: Guarded) -> list[Path]:
    return [path for path in guarded.files.values() if path.suffix != ".woff2"]
