"""Access to the page and the masking of secrets, as docs/playground.md describes them."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from stepwell.operate.masking import MASK, is_secret
from stepwell.playground.actions import ACTIONS
from stepwell.playground.events.timeline import MAX_GROUPS
from stepwell.playground.pages import FILES, MAX_REQUEST
from stepwell.playground.play import Playground
from stepwell.playground.rooms import MESSAGES
from stepwell.web.auth import HEADERS
from stepwell.web.display import as_json
from stepwell.web.error_page import STYLE_HASH
from stepwell.web.files import content_of
from tests.web.access import METHODS, AccessTests, Guarded, browsing, status

BOT = Path(__file__).parent / "cafe.py"
HOST = "127.0.0.1:8642"
PAGE = Path(FILES["/index.html"]).parent

ROUTES = [
    *[("GET", path) for path in ("/", *FILES, "/events", "/nothing", "/api/send")],
    *[("POST", f"/api/{name}") for name in (*ACTIONS, "nothing")],
    *METHODS,
]


@pytest.fixture
def play(tmp_path: Path) -> Playground:
    """A playground that does not listen on a port and whose bot does not run."""
    return Playground(BOT, storage=f"sqlite:///{tmp_path}/play.db", port=8642, hosts=("my.name",))


@pytest.fixture
async def http(play: Playground) -> AsyncIterator[httpx.AsyncClient]:
    """A browser with a session."""
    transport = httpx.ASGITransport(app=play.auth)
    async with httpx.AsyncClient(base_url=f"http://{HOST}", transport=transport) as client:
        assert (await client.get(f"/?token={play.auth.token}")).status_code == 200
        yield client


def allowed(method: str) -> dict[str, str]:
    """Return the headers that the page sends."""
    writes = {"Origin": f"http://{HOST}", "Content-Type": "application/json"}
    return writes if method not in ("GET", "HEAD") else {}


# Access


@pytest.fixture
def guarded(play: Playground) -> Guarded:
    return Guarded(play.auth, HOST, play.auth.token, ROUTES, FILES)


class TestAccess(AccessTests):
    async def test_another_port_or_scheme_is_refused(self, guarded: Guarded) -> None:
        async with browsing(guarded, guarded.token) as client:
            for route in guarded.routes:
                for host in ("127.0.0.1", "127.0.0.1:80", "localhost"):
                    assert await status(client, route, Host=host, Origin=f"http://{host}") == 403
                assert await status(client, route, Origin=f"https://{HOST}") == 403


async def test_a_link_works_in_one_browser(play: Playground) -> None:
    address = f"/?token={play.auth.token}"
    transport = httpx.ASGITransport(app=play.auth)
    async with httpx.AsyncClient(base_url=f"http://{HOST}", transport=transport) as first:
        assert (await first.get(address)).status_code == 200
        for _ in range(2):
            # The browser with the session may load the link again.
            assert (await first.get(address)).content == content_of(FILES["/index.html"])
            async with httpx.AsyncClient(base_url=f"http://{HOST}", transport=transport) as other:
                answer = await other.get(address)
                assert answer.status_code == 401
                assert "each link works once" in answer.text
                assert "set-cookie" not in answer.headers
                assert (await other.get("/")).status_code == 401


async def test_a_used_link_is_replaced_by_a_new_one(tmp_path: Path) -> None:
    links: list[str] = []
    play = Playground(BOT, storage="memory://", port=8642, new_link=links.append)
    used = {play.url}
    for _ in range(3):
        transport = httpx.ASGITransport(app=play.auth)
        async with httpx.AsyncClient(base_url=f"http://{HOST}", transport=transport) as browser:
            assert (await browser.get(f"/?token={play.auth.token}")).status_code == 200
            assert (await browser.get("/")).status_code == 200
        assert links[-1] == play.url
        assert play.url not in used
        used.add(play.url)
    assert len(links) == 3


def test_the_token_is_random_and_long(tmp_path: Path) -> None:
    tokens = {Playground(BOT, storage="memory://").auth.token for _ in range(5)}
    assert len(tokens) == 5
    assert all(len(token) >= 32 for token in tokens)


async def test_two_playgrounds_do_not_overwrite_each_others_cookies(play: Playground, http: httpx.AsyncClient) -> None:
    assert [cookie.name for cookie in http.cookies.jar] == ["stepwell-8642"]


@pytest.mark.parametrize("name", ["localhost", "my.name"])
async def test_allowed_host_names_are_accepted(play: Playground, name: str) -> None:
    transport = httpx.ASGITransport(app=play.auth)
    async with httpx.AsyncClient(base_url=f"http://{name}:8642", transport=transport) as client:
        assert (await client.get(f"/?token={play.auth.token}")).status_code == 200
        assert (await client.get("/")).status_code == 200
        headers = {"Content-Type": "application/json", "Origin": f"http://{name}:8642"}
        assert (await client.post("/api/repeat", headers=headers)).status_code == 400


async def test_everything_listens_on_this_machine_only(tmp_path: Path) -> None:
    mine = psutil.Process()
    before = {each.laddr for each in mine.net_connections("tcp") if each.status == psutil.CONN_LISTEN}
    async with Playground(BOT, storage=f"sqlite:///{tmp_path}/play.db"):
        listening = {each.laddr for each in mine.net_connections("tcp") if each.status == psutil.CONN_LISTEN} - before
        assert len(listening) == 3
        assert {address.ip for address in listening} == {"127.0.0.1"}


# Responses


def test_the_policy_allows_nothing_but_the_pages_own_files() -> None:
    policy = HEADERS["Content-Security-Policy"].split("; ")
    assert policy[0] == "default-src 'none'"
    assert {each.partition(" ")[2] for each in policy} == {"'none'", "'self'", f"'self' {STYLE_HASH}"}
    assert "script-src 'self'" in policy


async def test_a_browser_gets_errors_as_a_page_and_other_clients_as_a_line(
    play: Playground, http: httpx.AsyncClient
) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    transport = httpx.ASGITransport(app=play.auth)
    async with httpx.AsyncClient(base_url=f"http://{HOST}", transport=transport) as stranger:
        found = [
            (await stranger.get("/", headers=browser), 401, "No session"),
            (await stranger.get("/", headers={**browser, "Host": "evil.example"}), 403, "Host name not allowed"),
            (await http.get("/<script>", headers=browser), 404, "Not found"),
        ]
        for answer, code, title in found:
            assert (answer.status_code, answer.headers["content-type"]) == (code, "text/html; charset=utf-8")
            assert f"<h1>{title}</h1>" in answer.text
            assert "<script" not in answer.text
            (style,) = re.findall("<style>(.*?)</style>", answer.text)
            assert f"'sha256-{b64encode(sha256(style.encode()).digest()).decode()}'" == STYLE_HASH
        plain = await stranger.get("/")
        assert plain.headers["content-type"] == "text/plain; charset=utf-8"
        assert plain.text.startswith("This browser has no session.")


def test_the_files_of_the_page_are_in_the_package() -> None:
    assert {"/index.html", "/page.css", "/main.js", "/icon.svg"} <= set(FILES)
    assert PAGE.is_relative_to(Path(__file__).parents[2] / "src" / "stepwell")


# Secrets and sizes


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "dbPassword",
        "API_KEY",
        "apiKey",
        "access-token",
        "secret",
        "client_secret",
        "PIN",
        "cvv",
        "cardNumber",
        "otp",
    ],
)
def test_a_field_named_like_a_secret_is_masked(name: str) -> None:
    assert is_secret(name)
    assert as_json({"deep": [{name: "hunter2"}]}) == {"deep": [{name: MASK}]}
    assert as_json({name: {"inner": "hunter2"}}) == {name: MASK}
    assert as_json({name: None}) == {name: None}


@pytest.mark.parametrize(
    "name", ["name", "email", "shipping", "opinion", "tokenize", "passport", "monkey", "key", "pinned"]
)
def test_other_fields_are_shown(name: str) -> None:
    assert as_json({name: "value"}) == {name: "value"}


def test_values_without_a_json_form_are_shown_as_repr() -> None:
    assert as_json({(1, 2): {3}, "big": 2**60, "b": b"x", "s": "\ud800"}) == {
        "(1, 2)": "{3}", "big": str(2**60), "b": "b'x'", "s": "?",
    }  # fmt: skip


def test_large_values_are_truncated() -> None:
    assert len(as_json("x" * 100_000)) < 5000
    assert len(as_json(list(range(10_000)))) == 101
    assert len(as_json({str(n): n for n in range(10_000)})) == 101
    deep: Any = "end"
    for _ in range(1000):
        deep = [deep]
    assert "…" in str(as_json(deep))


async def test_a_chat_and_the_timeline_show_the_newest_only(play: Playground) -> None:
    person = play.api.chat(play.bot, 42)
    play._unwatch = play.world.watch(play._on_event)
    for n in range(300):
        await person.send(f"message {n}")
    following = play.board.follow()
    sections = await anext(following)
    await following.aclose()
    messages = sections["room 42"]["messages"]
    assert (len(messages), messages[-1]["text"]) == (MESSAGES, "message 299")
    assert (len(sections["timeline"]), sections["event 300"]["title"]) == (MAX_GROUPS, "message 299")
    assert len([name for name in sections if name.startswith("event ")]) == MAX_GROUPS


async def test_a_large_request_is_refused(http: httpx.AsyncClient) -> None:
    answer = await http.post("/api/send", content=b"x" * (MAX_REQUEST + 1), headers=allowed("POST"))
    assert answer.status_code == 400
    assert "at most" in answer.json()["error"]


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("send", b"[]"),
        ("send", b"{"),
        ("send", b'{"room": "42", "user": 42, "text": ""}'),
        ("send", b'{"room": "42", "user": 42, "text": 7}'),
        ("send", b'{"room": "42", "user": 42, "text": "\\ud800"}'),
        ("send", b'{"room": "7", "user": 42, "text": "x"}'),
        ("send", b'{"room": "42", "user": 43, "text": "x"}'),
        ("send", b'{"room": "42", "user": true, "text": "x"}'),
        ("send", b'{"room": "42", "user": 42, "thread": 5, "text": "x"}'),
        ("send_photos", b'{"room": "42", "user": 42}'),
        ("send_photos", b'{"room": "42", "user": 42, "photos": []}'),
        ("send_photos", b'{"room": "42", "user": 42, "photos": [7]}'),
        ("send_photos", b'{"room": "42", "user": 42, "photos": ["not base64"]}'),
        ("send_photos", b'{"room": "42", "user": 42, "photos": ["PHN2Zz4="]}'),
        ("send_file", b'{"room": "42", "user": 42, "name": "tea.txt"}'),
        ("send_file", b'{"room": "42", "user": 42, "name": "tea.txt", "content": ""}'),
        ("send_file", b'{"room": "42", "user": 42, "name": "", "content": "dGVh"}'),
        ("send_file", b'{"room": "42", "user": 42, "name": "tea.txt", "content": "not base64"}'),
        ("edit_message", b'{"room": "42", "user": 42, "message": 9, "text": "x"}'),
        ("stop", b'{"room": "42", "user": 42}'),
        ("press", b'{"room": "42", "user": 42, "message": 1, "row": 0, "column": 0}'),
        ("press", b'{"room": "42", "user": 42, "row": -1, "column": 0}'),
        ("fire_timer", b'{"bot": "unknown", "key": "x"}'),
        ("edit_record", b'{"bot": "unknown", "key": "x", "version": "1.a", "data": "{}"}'),
        ("edit_record", b'{"bot": "cafe", "key": "(42,42)", "version": "1.a", "data": {}}'),
        ("edit_record", b'{"bot": "cafe", "key": "(42,42)", "version": 1, "data": "{}"}'),
        ("edit_record", b'{"bot": "cafe", "key": "(42,42)", "version": "1.a", "state": 7, "data": "{}"}'),
        ("clear_record", b'{"bot": "cafe", "key": "(42,42)"}'),
        ("step_back", b'{"bot": "cafe", "key": "(42,42)"}'),
        ("replay", b'{"room": "7"}'),
        ("replay", b'{"room": "42"}'),
        ("copy_test", b'{"room": "42", "user": 42}'),
        ("add_group", b'{"name": ""}'),
        ("nothing", b"{}"),
    ],
)
async def test_an_invalid_action_is_refused_with_a_reason(
    play: Playground, http: httpx.AsyncClient, name: str, body: bytes
) -> None:
    play.api.chat(play.bot, 42)
    answer = await http.post(f"/api/{name}", content=body, headers=allowed("POST"))
    assert answer.status_code == 400
    assert answer.json()["error"]


async def test_of_files_only_pictures_are_served_as_such(play: Playground, http: httpx.AsyncClient) -> None:
    alice = play.api.chat(play.bot, 42)
    png, svg = b"\x89PNG\r\n\x1a\n...", b"<svg xmlns='http://www.w3.org/2000/svg'><script/></svg>"
    shown, hidden = [(await alice.send_photo(content))["photo"][0]["file_id"] for content in (png, svg)]
    served = await http.get(f"/picture/{shown}")
    assert (served.content, served.headers["content-type"]) == (png, "image/png")
    assert served.headers["x-content-type-options"] == "nosniff"
    assert (await http.get(f"/picture/{hidden}")).status_code == 404
    assert (await http.get("/picture/unknown")).status_code == 404
    http.cookies.clear()
    assert (await http.get(f"/picture/{shown}")).status_code != 200


async def test_ten_pictures_are_no_request_that_is_too_large(play: Playground, http: httpx.AsyncClient) -> None:
    alice = play.api.chat(play.bot, 42)
    photos = [b64encode(b"\xff\xd8\xff" + b"x" * 500_000).decode()] * 10
    body = {"room": "42", "user": 42, "photos": photos, "text": "Many"}
    assert (await http.post("/api/send_photos", json=body, headers=allowed("POST"))).json() == {"ok": True}
    assert len({message["media_group_id"] for message in alice.messages}) == 1
    refused = await http.post("/api/send_photos", json={**body, "photos": photos * 3}, headers=allowed("POST"))
    assert "at most" in refused.json()["error"]


async def test_users_groups_and_topics_are_limited(play: Playground, http: httpx.AsyncClient) -> None:
    play.api.chat(play.bot, 42)
    for name, more in (("add_person", {}), ("add_group", {}), ("add_topic", {"room": "-1001", "user": 42})):
        answers = [
            await http.post(f"/api/{name}", json={"name": f"{name} {n}", **more}, headers=allowed("POST"))
            for n in range(15)
        ]
        assert answers[0].status_code == 200
        assert "the limit of" in answers[-1].json()["error"]
