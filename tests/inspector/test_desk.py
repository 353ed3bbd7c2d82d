"""Conversations with an agent, and messages: what the pages show, and what people do about it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from stepwell.fsm import FSM
from stepwell.nodes import Node, NodeFlow
from stepwell.operate.audit import recorded
from stepwell.storage import Storage
from stepwell.telegram.engine import updates_in_inbox
from tests.backends import Backend
from tests.inspector import desk
from tests.inspector.conftest import Browser, app_of
from tests.inspector.desk import HOSTILE, SECRET, subject
from tests.turns.people import People

pytestmark = pytest.mark.every_backend


@pytest.fixture
async def filled(shared_backend: Backend) -> AsyncIterator[tuple[Storage, People]]:
    async with shared_backend.storage(shared_backend.place()) as storage:
        yield storage, await desk.fill(storage)


async def get(client: httpx.AsyncClient, page: str, **params: str) -> Any:
    answer = await client.get(f"/api/{page}", params=params)
    assert answer.status_code == 200, answer.text
    assert SECRET not in answer.text
    return answer.json()[page]


async def post(client: httpx.AsyncClient, action: str, **body: Any) -> Any:
    answer = await client.post(f"/api/{action}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_conversation_shows_its_turn_and_a_question_is_answered_once(
    filled: tuple[Storage, People], browse: Browser
) -> None:
    storage, people = filled
    client = await browse(app_of(storage, allow_write=True))
    listed = await get(client, "turns", bot="desk")
    assert {row["key"]: (row["state"], row["failed"]) for row in listed["rows"]} == {
        "(41,0)": ("idle", 0),
        "(42,0)": ("asking", 0),
        "(43,0)": ("idle", 1),
        "(44,0)": ("idle", 1),
    }
    assert [row["key"] for row in (await get(client, "turns", state="asking"))["rows"]] == ["(42,0)"]
    shown = await get(client, "turn", **subject(42))
    assert (shown["messages"][0]["text"], shown["chats"]) == (f"a refund please {HOSTILE}", ["42"])
    assert [(tool["name"], tool["outcome"]) for tool in shown["tools"]] == [("_look_up", "returned")]
    question = shown["questions"][0]
    assert (question["options"], question["approvers"]) == (["Yes", "No"], [7, 8])
    body = {**subject(42), "turn": shown["turn"], "question": question["number"], "choice": "Yes"}
    assert (await post(client, "decide", **body))["outcome"] == "not allowed"
    assert (await post(client, "decide", **body, by=7))["outcome"] == "accepted"
    assert (await post(client, "decide", **{**body, "choice": "No"}, by=8))["outcome"] == "answered before"
    assert (await post(client, "decide", **{**body, "turn": "earlier"}, by=7))["outcome"] == "too late"
    assert (await desk.answered_by(storage, people, 5))[-1] == "Refunded."
    assert (await post(client, "decide", **body, by=7))["outcome"] == "too late"
    newest = (await recorded(storage, limit=1))[0]
    assert (newest.who, newest.what) == ("inspector", "answered a question of desk (42,0)")
    assert newest.after == {"answer": "Yes", "in the name of": "7"}
    history = (await get(client, "turn", **subject(42)))["history"]
    assert [entry["role"] for entry in history] == ["assistant", "user"]


async def test_a_turn_is_stopped_and_a_person_replies(filled: tuple[Storage, People], browse: Browser) -> None:
    storage, people = filled
    client = await browse(app_of(storage, allow_write=True))
    turn = (await get(client, "turn", **subject(42)))["turn"]
    assert (await post(client, "stop_turn", **subject(42), turn="earlier"))["outcome"] == "too late"
    assert (await post(client, "stop_turn", **subject(42), turn=turn))["outcome"] == "stopped"
    assert (await post(client, "reply_turn", **subject(41), text="I look at it."))["outcome"] == "stored"
    assert sorted((await desk.answered_by(storage, people, 6))[-2:]) == ["I look at it.", "Stopped."]
    assert [(each.what, each.after) for each in await recorded(storage, limit=2)] == [
        ("replied in desk (41,0)", {"text": "I look at it."}),
        (f"stopped the turn {turn} of desk (42,0)", None),
    ]


async def test_failed_turns_are_retried_and_dropped_alone_and_in_bulk(
    filled: tuple[Storage, People], browse: Browser
) -> None:
    storage, _ = filled
    client = await browse(app_of(storage, allow_write=True))
    rows = (await get(client, "turns", bot="desk", failed="1"))["rows"]
    assert [row["key"] for row in rows] == ["(43,0)", "(44,0)"]
    failed = (await get(client, "turn", **subject(43)))["failed"][0]
    assert "the model does not answer: api_key=•••" in failed["error"]
    assert failed["texts"] == ["it is broken"]
    chosen = [{**subject(user), "turn": None} for user in (41, 43)]
    assert (await post(client, "retry_turns", chosen=chosen)) == {"ok": True, "done": 1, "late": 1}
    assert [each["text"] for each in (await get(client, "turn", **subject(43)))["waiting"]] == ["it is broken"]
    other = (await get(client, "turn", **subject(44)))["failed"][0]["id"]
    for done in (1, 0):
        dropped = await post(client, "drop_turns", chosen=[{**subject(44), "turn": other}])
        assert (dropped["done"], dropped["late"]) == (done, 1 - done)
    assert (await get(client, "turns", bot="desk", failed="1"))["rows"] == []


async def test_refused_answers_are_sent_again_once_and_dropped(filled: tuple[Storage, People], browse: Browser) -> None:
    storage, _ = filled
    client = await browse(app_of(storage, allow_write=True))
    found = await get(client, "messages", bot="desk")
    assert {(row["chat"], row["code"], row["description"]) for row in found["refused"]} == {
        (chat, 403, "Forbidden: bot was blocked by the user") for chat in (42, 43)
    }
    assert found["refused"][0]["call"]["token"] == "•••"
    places = {row["chat"]: {"chat": row["chat"], "number": row["number"]} for row in found["refused"]}
    for done in (1, 0):
        sent = await post(client, "resend", bot="desk", chosen=[places[42]])
        assert (sent["done"], sent["late"]) == (done, 1 - done)
    assert (await post(client, "drop_calls", bot="desk", chosen=[places[43], places[42]]))["done"] == 1
    found = await get(client, "messages", bot="desk")
    assert found["refused"] == []
    assert {row["key"]: row["calls"] for row in found["unsent"]} == {
        "(45,45)": [{"method": "sendMessage", "chat": 45}],
        '("sent again",42)': [{"method": "sendMessage", "chat": 42}],
    }
    assert (await post(client, "drop_unsent", bot="desk", chosen=[{"key": "(45,45)"}]))["done"] == 1
    assert (await post(client, "send_now", bot="desk", chosen=[{"key": "(45,45)"}]))["late"] == 1
    sent_calls: list[dict[str, Any]] = []
    async with FSM("desk", storage=storage, flows=[], send=sent_calls.append) as fsm:
        await fsm.tick()
    assert [call["text"] for call in sent_calls] == [f"Your order 0: {HOSTILE}"]


async def test_failed_updates_show_their_traceback_and_go_back_into_the_inbox(
    filled: tuple[Storage, People], browse: Browser
) -> None:
    storage, _ = filled
    client = await browse(app_of(storage, allow_write=True))
    failed, poison = (await get(client, "messages", bot="desk"))["aside"]
    assert "ValueError: password=•••" in failed["traceback"]
    assert (poison["why"], poison["attempts"], poison["chat"]) == ("its process has ended each time", 5, 46)
    place = {"log": poison["log"], "entry": poison["entry"]}
    assert (await post(client, "retry_updates", bot="desk", chosen=[place]))["done"] == 1
    assert (await post(client, "retry_updates", bot="desk", chosen=[place]))["late"] == 1
    assert [each.chat for each in await updates_in_inbox(storage, "desk")] == [46]
    place = {"log": failed["log"], "entry": failed["entry"]}
    assert (await post(client, "drop_updates", bot="desk", chosen=[place]))["done"] == 1
    found = await get(client, "messages", bot="desk")
    assert (found["aside"], [each["chat"] for each in found["waiting"]]) == ([], [46])


async def test_a_reply_to_a_conversation_waits_for_its_bot(filled: tuple[Storage, People], browse: Browser) -> None:
    storage, _ = filled
    client = await browse(app_of(storage, allow_write=True))
    assert (await post(client, "reply", bot="desk", key="(42,42)", text="One moment."))["outcome"] == "stored"
    sent: list[dict[str, Any]] = []
    async with FSM("desk", storage=storage, flows=[], send=sent.append) as fsm:
        await fsm.tick()
    assert {"method": "sendMessage", "chat_id": 42, "text": "One moment."} in sent
    assert (await storage.get_data("desk", (42, 42))) == {"name": "Anna"}


async def test_the_audit_is_paged_and_shows_what_was_changed(filled: tuple[Storage, People], browse: Browser) -> None:
    storage, _ = filled
    client = await browse(app_of(storage, allow_write=True))
    for number in range(52):
        await post(client, "reply", bot="desk", key="(42,42)", text=f"message {number}")
    page = await get(client, "audit")
    assert (len(page["rows"]), page["rows"][0]["after"]) == (50, {"text": "message 51"})
    assert page["rows"][0]["subject"] == ["record", "desk", "(42,42)"]
    older = await get(client, "audit", before=str(page["before"]))
    assert [row["after"] for row in older["rows"]] == [{"text": "message 1"}, {"text": "message 0"}]


async def test_runs_conversations_and_turns_of_a_chat_lead_to_each_other(
    filled: tuple[Storage, People], browse: Browser
) -> None:
    storage, _ = filled
    client = await browse(app_of(storage))
    flow: NodeFlow = NodeFlow(Node(name="Ship"), name="shipping")
    await flow.submit({}, storage=storage, flow_id="ship-1", tags={"bot": "desk", "chat": 42})
    await flow.submit({}, storage=storage, flow_id="ship-2", tags={"chat": 42})
    record, turn = ["record", "desk", "(42,42)"], ["turn", "desk", "(42,0)"]
    assert (await get(client, "turn", **subject(42)))["places"] == [record]
    shown = await get(client, "record", bot="desk", key="(42,42)")
    assert (shown["chats"], shown["places"]) == (["42"], [turn])
    for flow_id in ("ship-1", "ship-2"):
        assert (await get(client, "run", id=flow_id))["places"] == [record, turn]
    assert {row["flow_id"] for row in (await get(client, "runs", tag="chat=42"))["rows"]} == {"ship-1", "ship-2"}
