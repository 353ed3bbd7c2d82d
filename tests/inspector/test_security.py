"""Access to the inspector, as docs/inspector.md describes it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from stepwell.errors import InvalidOption, Parked
from stepwell.inspector import Inspector, inspector
from stepwell.inspector.app import FILES, MAX_REQUEST, METRICS
from stepwell.inspector.pages import ACTIONS, VIEWS
from stepwell.nodes import Wait, linear
from stepwell.operate.runs import record_of_run
from stepwell.storage import Storage, open_storage
from stepwell.web.files import content_of
from tests.inspector import shop
from tests.inspector.conftest import HOST, TOKEN, WRITE, Browser, app_of
from tests.web.access import METHODS, AccessTests, Guarded, status

READS = [
    ("GET", path) for path in ("/", *FILES, METRICS, "/nothing", *[f"/api/{name}" for name in (*VIEWS, "nothing")])
]
WRITES = [("POST", f"/api/{name}") for name in (*ACTIONS, "nothing")]
ROUTES = [*READS, *WRITES, *METHODS]


@pytest.fixture
async def filled(tmp_path: Path) -> AsyncIterator[Storage]:
    async with open_storage(f"sqlite:///{tmp_path}/shop.db") as storage:
        yield storage


@pytest.fixture
def app(filled: Storage) -> Inspector:
    return app_of(filled, allow_write=True)


@pytest.fixture
async def stranger(app: Inspector) -> AsyncIterator[httpx.AsyncClient]:
    """A browser without a session."""
    async with httpx.AsyncClient(base_url=f"http://{HOST}", transport=httpx.ASGITransport(app=app)) as client:
        yield client


@pytest.fixture
async def client(app: Inspector, browse: Browser) -> httpx.AsyncClient:
    client = await browse(app)
    client.headers.pop("Origin")
    client.headers.pop("Content-Type")
    return client


@pytest.fixture
def guarded(app: Inspector) -> Guarded:
    return Guarded(app, HOST, TOKEN, ROUTES, FILES)


class TestAccess(AccessTests):
    pass


async def test_a_read_only_inspector_refuses_every_write(filled: Storage, browse: Browser) -> None:
    client = await browse(app_of(filled))
    for route in ROUTES:
        code = await status(client, route)
        if route in WRITES[:-1]:
            assert (route, code) == (route, 403)
            assert "read-only" in (await client.post(route[1], json={})).json()["error"]
        else:
            assert (route, code in ((200, 400, 404) if route[0] == "GET" else (404, 405))) == (route, True)


async def test_a_random_token_opens_one_session(filled: Storage, browse: Browser) -> None:
    app = inspector(filled)
    used = app.token
    assert len(used) >= 32
    await browse(app)
    assert app.token != used
    async with httpx.AsyncClient(base_url=f"http://{HOST}", transport=httpx.ASGITransport(app=app)) as other:
        assert (await other.get("/", params={"token": used})).status_code == 401


def test_a_short_token_is_refused(filled: Storage) -> None:
    with pytest.raises(InvalidOption, match="at least 16"):
        inspector(filled, token="secret")


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ({}, "has no tokens"),
        ({"anna": "short"}, "at least 16"),
        ({"": "x" * 20}, "has no name"),
        ({"anna": "x" * 20, "ben": "x" * 20}, "the same token"),
    ],
)
def test_tokens_of_several_people_are_checked(filled: Storage, tokens: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        inspector(filled, token=tokens)


async def test_a_write_is_logged_with_the_name_of_the_token(
    filled: Storage, browse: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    await filled.set_data("shop", (42, 42), {"name": "Anna"})
    caplog.set_level(logging.INFO, "stepwell.operate")
    tokens = {name: f"the token of {name} 123" for name in ("anna", "ben")}
    for token in tokens.values():
        client = await browse(inspector(filled, token=tokens, allow_write=True), token)
        shown = (await client.get("/api/record", params={"bot": "shop", "key": "42"})).json()["record"]
        body = {"bot": "shop", "key": "42", "field": "name", "value": '"Bob"', "version": shown["version"]}
        assert (await client.post("/api/set_field", json=body)).status_code == 200
    assert [record.getMessage() for record in caplog.records] == [
        f"{name} changed field name of shop (42,42)" for name in tokens
    ]


async def test_a_session_is_valid_in_every_process_with_the_same_token(filled: Storage, browse: Browser) -> None:
    client = await browse(app_of(filled))
    cookies = dict(client.cookies)
    transport = httpx.ASGITransport(app=app_of(filled))
    async with httpx.AsyncClient(base_url=f"http://{HOST}", transport=transport, cookies=cookies) as other:
        assert (await other.get("/api/overview")).status_code == 200
    foreign = inspector(filled, token="another token of the tests")
    async with httpx.AsyncClient(
        base_url=f"http://{HOST}", transport=httpx.ASGITransport(app=foreign), cookies=cookies
    ) as other:
        assert (await other.get("/api/overview")).status_code == 401


async def test_a_mounted_inspector_works_below_its_prefix_and_behind_tls(filled: Storage) -> None:
    app = app_of(filled, allow_write=True, hosts=["admin.example"])
    transport = httpx.ASGITransport(app=Starlette(routes=[Mount("/inspect", app)]))
    async with httpx.AsyncClient(base_url="https://admin.example", transport=transport) as client:
        answer = await client.get("/inspect/", params={"token": TOKEN})
        assert 'content="0;url=/inspect/"' in answer.text
        cookie = answer.headers["set-cookie"].lower()
        assert "path=/inspect/" in cookie
        assert "secure" in cookie
        assert (await client.get("/inspect/")).content == content_of(FILES["/index.html"])
        assert (await client.get("/inspect/main.js")).status_code == 200
        assert (await client.get("/inspect/api/overview")).json()["ok"]
        headers = {"Origin": "https://admin.example", "Content-Type": "application/json"}
        body = {"id": "nothing", "version": "1.a"}
        assert (await client.post("/inspect/api/retry", json=body, headers=headers)).status_code == 404


@pytest.mark.parametrize("body", [b"[]", b"{", b"7", b'{"bot": 7}', b'{"bot": "shop", "key": "(1,1)", "version": "x"}'])
async def test_an_invalid_write_is_refused_with_a_reason(client: httpx.AsyncClient, body: bytes) -> None:
    for name in ACTIONS:
        answer = await client.post(f"/api/{name}", content=body, headers=WRITE)
        assert (name, answer.status_code, bool(answer.json()["error"])) == (name, 400, True)


async def test_an_answer_that_its_wait_does_not_accept_is_refused_with_the_reason(
    filled: Storage, browse: Browser
) -> None:
    flow = linear(Wait("amount", accepts=int), name="accepting", storage=filled)
    with pytest.raises(Parked) as parked:
        await flow.run({}, flow_id="accepting-1")
    client = await browse(app_of(filled, allow_write=True))
    version = (await record_of_run(filled, "accepting-1")).version
    body = {"id": "accepting-1", "version": version, "wait": parked.value.id, "value": '"much"'}
    answer = await client.post("/api/answer", json=body, headers=WRITE)
    assert answer.status_code == 400
    assert "does not fit: Expected integer, got string" in answer.json()["error"]
    assert (await client.post("/api/answer", json={**body, "value": "20"}, headers=WRITE)).status_code == 200
    assert await flow.resume("accepting-1") == {"amount": 20}


async def test_a_large_request_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.post("/api/clear", content=b"x" * (MAX_REQUEST + 1), headers=WRITE)
    assert (answer.status_code, "at most" in answer.json()["error"]) == (400, True)


async def test_stored_text_is_served_as_json_only(filled: Storage, browse: Browser) -> None:
    await shop.fill(filled)
    client = await browse(app_of(filled))
    for name, params in (("overview", {}), ("record", {"bot": "shop", "key": "44"}), ("run", {"id": "charge-1"})):
        answer = await client.get(f"/api/{name}", params=params)
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
