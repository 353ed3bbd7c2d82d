"""Hostile requests: nothing gets in, nothing ends in an error 500, and a viewer changes nothing."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from stepwell import MemoryStorage
from stepwell.engine import Get, Query
from stepwell.inspector import Inspector, TrustedProxy, inspector
from stepwell.inspector.pages import ACTIONS, VIEWS
from stepwell.operate.record import version_text
from stepwell.storage import Storage
from tests.inspector import desk, shop
from tests.inspector.conftest import HOST
from tests.reliability.dose import dose
from tests.web.hostile import BODIES, VALUES

TOKENS = {name: f"the token of {name} 123" for name in ("vera", "otto", "anna")}
SECRET = "the secret of the proxy"
REQUESTS = dose("HOSTILE_REQUESTS", 2_000, 20_000)
#: Fields of requests, and values that name something that exists.
FIELDS = (
    "bot", "key", "id", "version", "wait", "turn", "question", "choice", "by", "text", "chat", "chosen", "field",
    "value", "flow", "state", "reason", "timer", "node", "item", "at",
)  # fmt: skip
KNOWN: dict[str, list[Any]] = {
    "bot": ["shop", "desk"], "key": ["(42,42)", "(42,0)", "42", "(43,0)"], "id": ["charge-1", "approve-1", "queued-1"],
    "version": ["1.a", "1763280000000000.0123abcd", "-1.x"], "question": [1, 2], "choice": ["Yes", "No"], "by": [7],
    "text": ["Hello"], "chat": [42, -1], "field": ["name", "password", "order"], "value": ['"x"', "1", "{"],
    "flow": ["order"], "state": ["item", "paid"], "timer": [True], "node": ["Charge"], "at": ["Charge"],
    "chosen": [
        [{"chat": 42, "number": 1}], [{"bot": "desk", "key": "(43,0)", "turn": None}], [{"key": "(45,45)"}],
        [{"log": '"updates set aside"', "entry": 1}], [{"chat": [], "number": {}}], [{}], [[]], [None], "x", [],
        [{"key": "(45,45)"}] * 201,
    ],
}  # fmt: skip
KINDS = (
    "application/json",
    "application/json; charset=utf-8",
    "text/plain",
    "application/x-www-form-urlencoded",
    "",
    None,
)
METHODS = ("GET", "GET", "POST", "POST", "POST", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND")


async def everything(storage: Storage) -> dict[str, Any]:
    """Return all records with their parts."""
    found: dict[str, Any] = {}
    for namespace in await storage.namespaces():
        after: Any = None
        while True:
            page, after = await storage.page(Query(namespace), after, 500)
            for address, _ in page:
                found[address.text] = await storage.perform(Get(address, parts=True))
            if after is None:
                break
    return found


@pytest.fixture
async def storage() -> AsyncIterator[Storage]:
    async with MemoryStorage() as storage:
        await shop.fill(storage)
        await desk.fill(storage)
        yield storage


def app_of(storage: Storage) -> Inspector:
    """Return an inspector with three people and a proxy in front."""
    proxy = TrustedProxy(secret=SECRET, groups="X-Groups")
    roles: Any = {"vera": "viewer", "otto": "operator", "anna": "admin", "readers": "viewer"}
    return inspector(storage, shop.flows(), token=TOKENS, roles=roles, proxy=proxy)


def body_of(rng: random.Random, versions: list[str]) -> bytes:
    """Return a body: valid fields of any action, some of them stale or of a wrong type, or no JSON at all."""
    if rng.random() < 0.2:
        return rng.choice(BODIES)
    body: dict[str, Any] = {}
    for name in rng.sample(FIELDS, rng.randrange(1, len(FIELDS))):
        known = KNOWN.get(name, []) + (versions if name == "version" else [])
        body[name] = rng.choice(known) if known and rng.random() < 0.75 else rng.choice(VALUES)
    text = json.dumps(body)
    return text.encode() if rng.random() < 0.97 else text.encode() + b" " * 310_000


def request_of(rng: random.Random, versions: list[str]) -> dict[str, Any]:
    """Return a request: a method, a path with parameters, a body, and headers without those of a session."""
    names = [*VIEWS, *ACTIONS, "nothing", "..", "%2e%2e%2fapp", "é", "\u202e"]
    path = rng.choice([f"/api/{rng.choice(names)}"] * 8 + ["/", "/metrics", "/main.js", "/nothing", "//evil.example/"])
    params = {}
    for name in rng.sample(
        ["bot", "key", "id", "after", "before", "state", "status", "user", "failed", "sort", "name"], 3
    ):
        params[name] = str(rng.choice([*KNOWN.get(name, []), *VALUES, "1", "-1", "x" * 5000]))[:1000]
    kind = rng.choice(KINDS) if rng.random() < 0.3 else KINDS[0]
    method = rng.choice(METHODS)
    headers = {} if kind is None else {"Content-Type": kind}
    content = body_of(rng, versions) if method not in ("GET", "HEAD") or rng.random() < 0.1 else b""
    return {"method": method, "url": path, "params": params, "content": content, "headers": headers}


async def versions_of(storage: Storage) -> list[str]:
    """Return the present versions of all records, with which edits are not stale."""
    return [version_text(stored.version) for stored in (await everything(storage)).values()]


async def sent(client: httpx.AsyncClient, rng: random.Random, request: dict[str, Any], **headers: str) -> int:
    """Send a request, and check what every response has."""
    origins = [f"http://{HOST}"] * 6 + ["http://evil.example", "null", "", f"http://{HOST}.evil.example"]
    origin = {} if rng.random() < 0.1 else {"Origin": rng.choice(origins)}
    if request["method"] in ("GET", "HEAD") and rng.random() < 0.8:
        origin = {}
    request = {**request, "headers": {**request["headers"], **origin, **headers}}
    response = await client.request(**{**request, "params": request["params"]})
    assert response.status_code < 500, (request, response.text)
    assert "access-control-allow-origin" not in response.headers
    assert desk.SECRET not in response.text and SECRET not in response.text
    return response.status_code


async def test_hostile_requests_without_a_session_get_nothing_and_change_nothing(storage: Storage) -> None:
    rng, app = random.Random("strangers"), app_of(storage)
    before, versions, codes = await everything(storage), await versions_of(storage), Counter[int]()
    token = TOKENS["anna"]
    guesses = ["", "x", token[:-1], f"{token}x", token.upper(), "é", "a" * 10_000, SECRET]
    transport = httpx.ASGITransport(app=app)
    for _ in range(REQUESTS // 2):
        cookie = rng.choice(
            ["", "stepwell-8643=", f"stepwell-8643={rng.choice(guesses[:4])}", 'stepwell-8643="', "a=b; ;"]
        )
        headers = {"Cookie": cookie} if cookie else {}
        if rng.random() < 0.3:
            headers["X-Forwarded-User"] = "anna"
            headers["X-Stepwell-Proxy"] = rng.choice([*guesses[:5], SECRET[:-1]])
        if rng.random() < 0.2:
            headers["Authorization"] = f"Bearer {rng.choice(guesses[:5])}"
        if rng.random() < 0.2:
            headers["Host"] = rng.choice(["evil.example", f"{HOST}.evil", "127.0.0.1@evil", "[::1]", ":8643"])
        async with httpx.AsyncClient(base_url=f"http://{HOST}", transport=transport) as client:
            request = request_of(rng, versions)
            if rng.random() < 0.2:
                request["params"]["token"] = rng.choice(guesses)
            codes[await sent(client, rng, request, **headers)] += 1
    assert set(codes) <= {401, 403, 415}, codes
    assert len(codes) == 3
    assert await everything(storage) == before


@pytest.mark.parametrize("by_proxy", [False, True], ids=["token", "proxy"])
async def test_a_viewer_changes_nothing_by_any_request(storage: Storage, by_proxy: bool) -> None:
    rng, app = random.Random(f"viewer {by_proxy}"), app_of(storage)
    before, versions, codes = await everything(storage), await versions_of(storage), Counter[int]()
    async with httpx.AsyncClient(base_url=f"http://{HOST}", transport=httpx.ASGITransport(app=app)) as client:
        headers: dict[str, str] = {}
        if by_proxy:
            headers = {"X-Stepwell-Proxy": SECRET, "X-Forwarded-User": "rita", "X-Groups": "readers, others"}
        else:
            assert (await client.get("/", params={"token": TOKENS["vera"]})).status_code == 200
        for _ in range(REQUESTS // 4):
            # A viewer who says to be somebody else.
            more = {"X-Role": "admin", "X-Forwarded-User": "anna"} if not by_proxy and rng.random() < 0.3 else {}
            codes[await sent(client, rng, request_of(rng, versions), **headers, **more)] += 1
    assert {200, 400, 403, 404, 405, 415} >= set(codes), codes
    assert codes[403] > REQUESTS // 20 and codes[200] > 0
    assert await everything(storage) == before


async def test_hostile_requests_of_an_admin_are_answered_with_a_reason(storage: Storage) -> None:
    rng, app, codes = random.Random("admin"), app_of(storage), Counter[int]()
    versions: list[str] = []
    async with httpx.AsyncClient(base_url=f"http://{HOST}", transport=httpx.ASGITransport(app=app)) as client:
        assert (await client.get("/", params={"token": TOKENS["anna"]})).status_code == 200
        for number in range(REQUESTS // 4):
            if number % 100 == 0:
                versions = await versions_of(storage)
            codes[await sent(client, rng, request_of(rng, versions))] += 1
    assert {200, 400, 403, 404, 405, 409, 415} >= set(codes), codes
    assert codes[200] > 0
