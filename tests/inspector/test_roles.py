"""Roles: what viewers, operators and admins may do, by token and by the headers of a proxy in front."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from stepwell.errors import InvalidOption
from stepwell.inspector import TrustedProxy, inspector
from stepwell.inspector.access import OPERATOR_ACTIONS, Role, read_access
from stepwell.inspector.pages import ACTIONS
from stepwell.operate.audit import recorded
from stepwell.storage import Storage, open_storage
from tests.inspector import shop
from tests.inspector.conftest import HOST, WRITE, Browser

SECRET = "the secret of the proxy"
TOKENS = {name: f"the token of {name} 123" for name in ("vera", "otto", "anna", "nora")}
ROLES: dict[str, Role] = {"vera": "viewer", "otto": "operator", "anna": "admin"}


@pytest.fixture
async def filled(tmp_path: Path) -> AsyncIterator[Storage]:
    async with open_storage(f"sqlite:///{tmp_path}/shop.db") as storage:
        await shop.fill(storage)
        yield storage


def client_of(app: Any, **headers: str) -> httpx.AsyncClient:
    """Return a client without a session."""
    transport = httpx.ASGITransport(app=app)
    return httpx.AsyncClient(base_url=f"http://{HOST}", transport=transport, headers={**WRITE, **headers})


async def statuses(client: httpx.AsyncClient) -> dict[str, int]:
    """Return the status of each action with an empty body."""
    return {name: (await client.post(f"/api/{name}", json={})).status_code for name in ACTIONS}


async def test_each_role_may_do_its_edits_and_no_others(filled: Storage, browse: Browser) -> None:
    app = inspector(filled, shop.flows(), token=TOKENS, roles=ROLES)
    allowed = {"vera": set(), "otto": OPERATOR_ACTIONS & set(ACTIONS), "anna": set(ACTIONS), "nora": set()}
    for person, actions in allowed.items():
        client = await browse(app, TOKENS[person])
        found = await statuses(client)
        assert (person, {name for name, code in found.items() if code != 403}) == (person, actions)
        told = (await client.get("/api/overview")).json()
        role = ROLES.get(person, "viewer")
        assert (told["person"], told["role"], set(told["can"])) == (person, role, actions)
    assert "forget" not in OPERATOR_ACTIONS
    assert [each.who for each in await recorded(filled, limit=10)] == ["the test"]


def test_the_edits_of_operators_exist() -> None:
    assert OPERATOR_ACTIONS - set(ACTIONS) == set()


async def test_a_proxy_names_the_person_and_the_groups_of_each_request(
    filled: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "stepwell.operate")
    proxy = TrustedProxy(secret=SECRET, groups="X-Forwarded-Groups")
    roles: dict[str, Role] = {"anna@example.com": "admin", "support": "operator", "staff": "viewer"}
    app = inspector(filled, shop.flows(), proxy=proxy, roles=roles)
    proof = {"X-Stepwell-Proxy": SECRET}
    for person, groups, role in (
        ("anna@example.com", "", "admin"),
        ("ben@example.com", "staff, support", "operator"),
        ("ben@example.com", "staff", "viewer"),
        ("ben@example.com", "admin", None),
        ("ben@example.com", "", None),
    ):
        headers = {**proof, "X-Forwarded-User": person, "X-Forwarded-Groups": groups}
        async with client_of(app, **headers) as client:
            answer = await client.get("/api/overview")
            assert (person, groups, answer.json().get("role")) == (person, groups, role)
            assert answer.status_code == (403 if role is None else 200)
            assert (await client.get("/metrics")).status_code == (403 if role is None else 200)
            found = {code for code in (await statuses(client)).values() if code != 403}
            assert bool(found) == (role in ("operator", "admin"))
    async with client_of(app, **proof, **{"X-Forwarded-User": "anna@example.com"}) as client:
        shown = (await client.get("/api/record", params={"bot": "shop", "key": "42"})).json()["record"]
        body = {"bot": "shop", "key": "42", "field": "name", "value": '"Bob"', "version": shown["version"]}
        assert (await client.post("/api/set_field", json=body)).status_code == 200
    change, _ = await recorded(filled, limit=10)
    assert (change.who, change.before, change.after) == ("anna@example.com", {"name": "Anna"}, {"name": "Bob"})
    assert caplog.records[-1].getMessage() == "anna@example.com changed field name of shop (42,42)"
    assert SECRET not in caplog.text


async def test_who_does_not_know_the_secret_of_the_proxy_is_not_believed(filled: Storage) -> None:
    app = inspector(filled, proxy=TrustedProxy(secret=SECRET), allow_write=True)
    user = ("X-Forwarded-User", "anna")
    proof = ("X-Stepwell-Proxy", SECRET)
    for headers in (
        [user],
        [proof],
        [user, ("X-Stepwell-Proxy", "")],
        [user, ("X-Stepwell-Proxy", SECRET[:-1])],
        [user, ("X-Stepwell-Proxy", f"{SECRET}x")],
        [user, ("X-Stepwell-Proxy", "é" * 23)],
        # The client has sent one too, and the proxy has not replaced it.
        [user, user, proof],
        [user, proof, proof],
        [("X-Forwarded-User", " "), proof],
        [("X-Forwarded-User", "x" * 201), proof],
    ):
        async with client_of(app) as client:
            raw = [(name.encode(), value.encode()) for name, value in headers]
            assert (headers, (await client.get("/api/overview", headers=raw)).status_code) == (headers, 401)
    async with client_of(app) as client:
        assert (await client.get("/api/overview", headers=[user, proof])).json()["role"] == "admin"
        # The origin is checked as for everybody.
        foreign = {"Origin": "http://evil.example", **dict([user, proof])}
        assert (await client.post("/api/clear", json={}, headers=foreign)).status_code == 403


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"token": TOKENS, "roles": {"ana": "admin"}}, "roles has 'ana', who has no token"),
        ({"token": TOKENS, "roles": {"anna": "root"}}, "the role of 'anna' must be one of viewer, operator, admin"),
    ],
)
def test_roles_that_fit_nobody_are_refused(filled: Storage, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        inspector(filled, **options)


def test_a_short_secret_of_a_proxy_is_refused_and_shown_nowhere() -> None:
    with pytest.raises(InvalidOption, match="the secret of the proxy has 6 characters"):
        TrustedProxy(secret="secret")
    assert SECRET not in repr(TrustedProxy(secret=SECRET))


def test_a_file_says_who_may_do_what(tmp_path: Path) -> None:
    path = tmp_path / "access.toml"
    path.write_text(
        f'[people.anna]\ntoken = "{TOKENS["anna"]}"\nrole = "admin"\n[people.vera]\ntoken = "{TOKENS["vera"]}"\n'
        f'[proxy]\nsecret = "{SECRET}"\ngroups = "X-Groups"\n[roles]\nsre = "operator"\n'
    )
    access = read_access(str(path))
    assert access.tokens == {name: TOKENS[name] for name in ("anna", "vera")}
    assert access.roles == {"sre": "operator", "anna": "admin", "vera": "viewer"}
    assert access.proxy == TrustedProxy(secret=SECRET, groups="X-Groups")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "lets nobody in"),
        ("[people.anna]\nrole = 'admin'", r"\[people.anna\] of .* needs a token"),
        ("[people]\nanna = 'secret token of anna'", r"\[people.anna\] of .* must be a table"),
        ("[people.anna]\ntoken = 'secret token of anna'\nrol = 'admin'", "has 'rol'; it may have role, token"),
        ("[proxy]\nuser = 'X-User'", r"\[proxy\] of .* needs a secret"),
        ("[tokens]\n", "the file of .* has 'tokens'"),
        ("secret token of anna", "is not TOML"),
        (None, "cannot read"),
    ],
)
def test_a_wrong_file_is_refused_without_its_secrets(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "access.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidOption, match=message) as refused:
        read_access(str(path))
    assert "secret token" not in str(refused.value)
