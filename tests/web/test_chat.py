"""The chat over HTTP, against a server process: the UI message stream, plain events, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from stepwell.errors import InvalidOption
from stepwell.turns import Turn, Turns
from stepwell.web import chat
from tests.until import forever, until
from tests.web.chats import STORY, Agent, agent_in, chunks_of, said

pytestmark = pytest.mark.asyncio(loop_scope="module")
JSON = {"Content-Type": "application/json"}
#: Each route with a body that it takes.
ROUTES: list[tuple[str, str, Any]] = [
    ("POST", "api", said("m", "hello", "routes")),
    ("GET", "api/routes/stream", None),
    ("GET", "api/routes/messages", None),
    ("POST", "api/routes/messages", {"id": "m", "text": "hello"}),
    ("POST", "api/routes/decide", {"id": "turn:1:mark", "choice": "Yes"}),
    ("POST", "api/routes/stop", {}),
    ("GET", "api/routes/events", None),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(tmp_path_factory: Any) -> AsyncIterator[Agent]:
    async with agent_in(tmp_path_factory.mktemp("agent")) as agent:
        agent.let("found")
        yield agent


async def ask(client: httpx.AsyncClient, number: str, text: str, chat: str = "main") -> list[dict[str, Any]]:
    """Send a message as ``useChat`` does, and return all chunks."""
    response = await client.post("api", json=said(number, text, chat))
    assert response.status_code == 200, response.text
    return chunks_of(response.text)


def texts(chunks: list[dict[str, Any]]) -> str:
    return "".join(each["delta"] for each in chunks if each["type"] == "text-delta")


async def waiting(client: httpx.AsyncClient, chat: str, kind: str = "tool-ask") -> dict[str, Any]:
    """Wait for an open question of a chat, and return its message."""

    async def last() -> Any:
        messages = (await client.get(f"api/{chat}/messages")).json()
        return messages[-1] if messages else {"parts": []}

    message: dict[str, Any] = await until(last, lambda each: any(part["type"] == kind for part in each["parts"]))
    return message


async def test_an_answer_is_a_ui_message_stream(agent: Agent) -> None:
    async with agent.client("bob") as bob:
        response = await bob.post("api", json=said("m1", "hello"))
        assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store"
        chunks = chunks_of(response.text)
        number = chunks[0]["messageId"]
        assert chunks[0] == {"type": "start", "messageId": number}
        assert chunks[1] == {"type": "text-start", "id": f"{number}-0"}
        assert {each["type"] for each in chunks[2:-2]} == {"text-delta"}
        assert chunks[-2:] == [
            {"type": "text-end", "id": f"{number}-0"},
            {"type": "finish", "finishReason": "stop"},
        ]
        assert texts(chunks) == STORY
        kept = (await bob.get("api/main/messages")).json()
        assert [(each["id"], each["role"]) for each in kept] == [("m1", "user"), (number, "assistant")]


async def test_a_message_that_comes_twice_is_answered_once(agent: Agent) -> None:
    async with agent.client("carl") as carl:
        both = await asyncio.gather(ask(carl, "m1", "hello"), ask(carl, "m1", "hello"))
        again = await ask(carl, "m1", "hello")
        regenerated = await carl.post("api", json=said("m1", "hello") | {"trigger": "regenerate-message"})
        assert {texts(each) for each in (*both, again, chunks_of(regenerated.text))} == {STORY}
        assert len((await carl.get("api/main/messages")).json()) == 2


async def test_nothing_is_resumed_where_nothing_runs(agent: Agent) -> None:
    async with agent.client("dora") as dora:
        assert (await dora.get("api/main/stream")).status_code == 204
        assert (await dora.get("api/main/messages")).json() == []
        assert (await dora.post("api/main/stop", json={})).json() == {"stopped": False}


async def test_a_turn_that_has_just_ended_is_given_again_to_a_page_that_had_lost_its_connection(agent: Agent) -> None:
    async with agent.client("emil") as emil:
        chunks = await ask(emil, "m1", "hello")
        resumed = chunks_of((await emil.get("api/main/stream")).text)
        assert (resumed[0], texts(resumed)) == (chunks[0], STORY)


async def test_a_question_ends_the_stream_and_its_answer_continues_the_message(agent: Agent) -> None:
    async with agent.client() as ann:
        chunks = await ask(ann, "ann-1", "look tea")
        kinds = [each["type"] for each in chunks]
        assert kinds[-3:] == ["tool-input-available", "tool-approval-request", "finish"]
        assert chunks[-1]["finishReason"] == "tool-calls"
        tool = next(each for each in chunks if each["type"] == "tool-output-available")
        assert tool["output"] == {"found": "TEA", "api_key": "•••"}
        message = await waiting(ann, "main")
        question = message["parts"][-1]
        answered = question | {"state": "approval-responded", "approval": question["approval"] | {"approved": True}}
        body = {"id": "main", "messages": [message | {"parts": [*message["parts"][:-1], answered]}]}
        # A second person who answers is too late, and nobody else can.
        async with agent.client("bob") as bob:
            for name in ("main", "other"):
                refused = await bob.post(f"api/{name}/decide", json={"id": question["approval"]["id"], "choice": "Yes"})
                assert (refused.status_code, refused.text) == (409, "This question is closed.")
        response = await ann.post("api", json=body)
        rest = chunks_of(response.text)
        assert [each["type"] for each in rest] == [
            "start", "tool-output-available", "text-start", "text-delta", "text-end", "finish",
        ]  # fmt: skip
        assert (rest[0]["messageId"], texts(rest)) == (message["id"], "I take TEA.")
        late = await ann.post("api/main/decide", json={"id": question["approval"]["id"], "choice": "No"})
        assert (late.status_code, late.text) == (409, "This question is closed.")
        assert (await ann.post("api", json=body)).text == "This question is closed."


async def test_another_option_and_another_question_are_refused(agent: Agent) -> None:
    async with agent.client("fred") as fred:
        await ask(fred, "m1", "colour")
        question = (await waiting(fred, "main"))["parts"][-1]
        number = question["approval"]["id"]
        turn, place, mark = number.split(":")
        for wrong, choice in (
            (number, "Pink"), (f"{turn}:2:{mark}", "Red"), (f"{turn}:{place}:00000000", "Red"),
            (f"x:{place}:{mark}", "Red"), ("", "Red"), ("a:b:c", "Red"), (":::", "Red"), (number + "x", "Red"),
        ):  # fmt: skip
            response = await fred.post("api/main/decide", json={"id": wrong, "choice": choice})
            assert (wrong, response.status_code) == (wrong, 409 if wrong else 400)
        assert (await fred.post("api/main/decide", json={"id": number, "choice": "Green"})).json() == {
            "outcome": "accepted"
        }
        await until(lambda: fred.get("api/main/messages"), lambda found: "It is Green." in found.text)


async def approve(client: httpx.AsyncClient, message: dict[str, Any], approval: dict[str, Any]) -> httpx.Response:
    """Answer the last question of a message as ``useChat`` does."""
    question = message["parts"][-1]
    answered = question | {"state": "approval-responded", "approval": question["approval"] | approval}
    messages = [message | {"parts": [*message["parts"][:-1], answered]}]
    return await client.post("api", json={"id": "main", "messages": messages})


async def test_a_refusal_whose_reason_is_the_name_of_an_option_is_a_refusal(agent: Agent) -> None:
    async with agent.client() as ann:
        await ask(ann, "ann-no", "look tea")
        message = await waiting(ann, "main")
        for wrong in ({"approved": "yes"}, {"approved": None}, {}):
            assert (await approve(ann, message, wrong)).status_code == 400
        chunks = chunks_of((await approve(ann, message, {"approved": False, "reason": "Yes"})).text)
        assert texts(chunks) == "I leave it."
    async with agent.client("otto") as otto:
        await ask(otto, "m1", "colour")
        message = await waiting(otto, "main")
        for wrong in ({"approved": False}, {"approved": False, "reason": "Red"}, {"approved": False, "reason": "Pink"}):
            assert (await approve(otto, message, wrong)).text == "This is no option of the question."
        chunks = chunks_of((await approve(otto, message, {"approved": False, "reason": "Blue"})).text)
        assert texts(chunks) == "It is Blue."


async def test_a_person_with_a_long_name_is_refused(agent: Agent) -> None:
    async with agent.client("x" * 129) as long, agent.client("x" * 128) as longest:
        assert (await long.get("api/main/messages")).status_code == 400
        assert (await longest.get(f"api/{'c' * 64}/messages")).json() == []


async def test_only_the_approvers_answer(agent: Agent) -> None:
    async with agent.client("gina") as gina:
        await ask(gina, "m1", "look tea")
        number = (await waiting(gina, "main"))["parts"][-1]["approval"]["id"]
        refused = await gina.post("api/main/decide", json={"id": number, "choice": "Yes"})
        assert (refused.status_code, refused.text) == (409, "You are not asked to answer this.")


async def test_plain_events_continue_after_the_last_one(agent: Agent) -> None:
    async with agent.client("hugo") as hugo:
        assert (await hugo.post("api/main/messages", json={"id": "m1", "text": "story"})).json() == {"outcome": "taken"}
        begun = await events(hugo, lambda page: "there was" in str(page))
        agent.let("go")
        whole = await events(hugo, lambda page: page["state"] == "idle")
        assert begun["messages"][0]["id"] == whole["messages"][0]["id"] == "m1"
        assert [part["text"] for each in whole["messages"] for part in each["parts"]] == ["story", STORY]
        assert whole["last"] == "1"
        await ask(hugo, "m2", "hello")
        rest = await events(hugo, lambda page: page["state"] == "idle", after=whole["last"])
        assert ([each["role"] for each in rest["messages"]], rest["messages"][0]["id"]) == (["user", "assistant"], "m2")


async def events(client: httpx.AsyncClient, enough: Any, after: str | None = None) -> dict[str, Any]:
    """Apply the events of a chat, each of them twice, until there are enough."""
    messages: dict[str, Any] = {}
    page: dict[str, Any] = {"messages": [], "state": None, "last": None}
    async with client.stream(
        "GET", "api/main/events", headers={} if after is None else {"Last-Event-ID": after}
    ) as stream:
        async for line in stream.aiter_lines():
            if line.startswith("id: "):
                page["last"] = line.removeprefix("id: ")
            for change in json.loads(line.removeprefix("data: ")) * 2 if line.startswith("data: ") else ():
                if change["type"] == "message":
                    messages[change["message"]["id"]] = change["message"]
                elif change["type"] == "delta":
                    part = messages[change["id"]]["parts"][change["part"]]
                    part["text"] = part["text"][: change["at"]] + change["text"]
                elif change["type"] == "state":
                    page["state"] = change["state"]
            page["messages"] = list(messages.values())
            if line.startswith("data: ") and enough(page):
                return page
    raise AssertionError("the stream has ended")


async def test_what_on_waiting_says_is_in_the_response() -> None:
    turns = Turns("bot", storage="memory://", on_waiting=lambda admission: f"{admission.waiting} before you")

    @turns.handler
    async def answer(turn: Turn) -> None:
        await forever()

    transport = httpx.ASGITransport(app=chat(turns, user=lambda request: 42))
    async with turns.worker(send=print, drain=0), httpx.AsyncClient(transport=transport, base_url="http://a") as client:
        await client.post("/api/main/messages", json={"id": "m1", "text": "one"})
        await until(lambda: turns.status(("web:main:42", 0)), lambda status: status.state == "running")
        waits = await client.post("/api/main/messages", json={"id": "m2", "text": "two"})
        assert waits.json() == {"outcome": "taken", "said": "1 before you"}


async def test_nobody_and_other_sites_are_refused_on_every_route(agent: Agent) -> None:
    async with agent.client("") as nobody, agent.client("ivan") as ivan:
        for method, path, body in [*ROUTES, ("GET", "", None), ("GET", "main.js", None)]:
            assert (path, (await nobody.request(method, path, json=body)).status_code) == (path, 401)
            for origin in ("http://evil.example", "null", "http://friend.example.evil", f"http://x@{agent.port}"):
                response = await ivan.request(method, path, json=body, headers={"Origin": origin})
                assert (path, origin, response.status_code) == (path, origin, 403)
            if method == "POST":
                for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
                    response = await ivan.post(path, content=json.dumps(body), headers={"Content-Type": kind})
                    assert (path, kind, response.status_code) == (path, kind, 415)
        for origin in (agent.url, "http://friend.example"):
            assert (await ivan.post("api/main/stop", json={}, headers={"Origin": origin})).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"", b"x", b"[]", b"{}", b"null", b'{"id": 1}', b'{"id": "main"}', b'{"id": "main", "messages": []}',
        b'{"id": "main", "messages": [1]}', b'{"id": "main", "messages": [{"role": "user"}]}',
        b'{"id": "main", "messages": [{"role": "user", "id": "a", "parts": []}]}',
        b'{"id": "main", "messages": [{"role": "user", "id": 1, "parts": [{"type": "text", "text": "a"}]}]}',
        b'{"id": "main", "messages": [{"role": "user", "id": "", "parts": [{"type": "text", "text": "a"}]}]}',
        b'{"id": "main", "messages": [{"role": "user", "id": "a", "parts": [{"type": "text", "text": " "}]}]}',
        b'{"id": "main", "messages": [{"role": "user", "id": "a", "parts": [{"type": "text", "text": 1}]}]}',
        b'{"id": "main", "messages": [{"role": "user", "id": "a", "parts": [{"type": "text", "text": "\\ud800"}]}]}',
        b'{"id": "main", "messages": [{"role": "user", "id": "a", "parts": ["a"]}]}',
        b'{"id": "main", "messages": [{"role": "assistant", "id": "a", "parts": []}]}',
        b'{"id": "main", "messages": [{"role": "system", "id": "a", "parts": [{"type": "text", "text": "a"}]}]}',
        b'{"id": "main", "messages": [{"role": "assistant", "id": "a", "parts": [{"state": "approval-responded"}]}]}',
        b'{"id": "main", "messages": [{"role": "assistant", "id": "a", "parts": '
        b'[{"type": "tool-ask", "state": "approval-responded", "approval": {"id": 1}}]}]}',
        b'{"id": "../x", "messages": [{"role": "user", "id": "a", "parts": [{"type": "text", "text": "a"}]}]}',
        b'{"id": "a:b", "messages": [{"role": "user", "id": "a", "parts": [{"type": "text", "text": "a"}]}]}',
        b'{"id": "main", "x": NaN}', b'{"id": "main", "x": ' + b"[" * 100 + b"]" * 100 + b"}",
        b'{"id": "main", "x": "' + b"x" * (2 * 1024 * 1024) + b'"}',
    ],
)  # fmt: skip
async def test_a_request_that_is_not_valid_is_refused_with_a_line_of_text(agent: Agent, body: bytes) -> None:
    async with agent.client("judy") as judy:
        response = await judy.post("api", content=body, headers=JSON)
        assert response.status_code == 400
        assert "\n" not in response.text and response.headers["content-type"].startswith("text/plain")
        assert (await judy.get("api/main/messages")).json() == []


async def test_a_message_that_is_too_long_is_refused(agent: Agent) -> None:
    async with agent.client("kim") as kim:
        response = await kim.post("api", json=said("m", "x" * (1024 * 1024 + 1)))
        assert (response.status_code, response.text) == (413, "This message is too long.")


async def test_one_person_has_at_most_so_many_streams(agent: Agent) -> None:
    async with agent.client("liz") as liz, agent.client("mia") as mia, asyncio.timeout(60):
        opened = [liz.stream("GET", "api/main/events") for _ in range(20)]
        for each in opened:
            assert (await each.__aenter__()).status_code == 200
        assert (await liz.get("api/main/events")).status_code == 429
        async with mia.stream("GET", "api/main/events") as stream:
            assert stream.status_code == 200
        for each in opened:
            await each.__aexit__(None, None, None)
        await until(lambda: liz.get("api/main/stream"), lambda response: response.status_code == 204)

        async def opens_again() -> bool:
            async with liz.stream("GET", "api/main/events") as stream:
                return stream.status_code == 200

        await until(opens_again)


async def test_only_the_files_of_the_page_are_served(agent: Agent) -> None:
    async with agent.client("nora") as nora:
        page = await nora.get("")
        assert page.status_code == 200
        assert "default-src 'none'" in page.headers["content-security-policy"]
        for path in ("../chat_app.py", "/page.html", "%2e%2e/chat_app.py", "//etc/passwd", "api", "api/main", "api//x"):
            assert (path, (await nora.get(path)).status_code in (404, 405)) == (path, True)


async def test_the_options_are_checked() -> None:
    turns = Turns("bot", storage="memory://")
    options: list[dict[str, Any]] = [
        {"user": None}, {"user": "ann"}, {"user": print, "origins": ["example.com"]}, {"user": print, "origins": "x"},
        {"user": print, "origins": ["https://example.com/"]}, {"user": print, "most_streams": 0},
        {"user": print, "max_request": "1"},
    ]  # fmt: skip
    for each in options:
        with pytest.raises(InvalidOption):
            chat(turns, **each)
    with pytest.raises(InvalidOption):
        chat("turns", user=print)  # type: ignore[arg-type]
