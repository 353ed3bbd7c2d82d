from __future__ import annotations

from typing import Any

import pytest

from examples import other_platforms as example
from stepwell.errors import StorageUnavailable
from stepwell.testing import FaultyStorage
from tests.backends import Backend


def slack(text: str, event_id: str, *, user: str = "U1", team: str = "T1") -> dict[str, Any]:
    return {
        "type": "event_callback",
        "team_id": team,
        "event_id": event_id,
        "event": {"type": "message", "channel": "D1", "user": user, "text": text, "ts": "1767225600.000100"},
    }


def slack_event(**event: Any) -> dict[str, Any]:
    return {"type": "event_callback", "team_id": "T1", "event_id": "Ev1", "event": event}


def whatsapp(*messages: tuple[str, str, str]) -> dict[str, Any]:
    value = {
        "messaging_product": "whatsapp",
        "metadata": {"display_phone_number": "15550001111", "phone_number_id": "106540352242922"},
        "messages": [
            {"from": sender, "id": number, "timestamp": "1767225600", "type": "text", "text": {"body": text}}
            for sender, number, text in messages
        ],
    }
    return {"object": "whatsapp_business_account", "entry": [{"id": "1", "changes": [{"value": value}]}]}


async def test_on_slack_teams_are_separate_and_an_event_counts_once(backend: Backend) -> None:
    bot = example.slack_bot(backend.storage())
    assert await example.on_slack_event(bot, slack("hello", "Ev1")) == "How was it, from 1 to 5?"
    assert await example.on_slack_event(bot, slack("hello", "Ev2", team="T2")) == "How was it, from 1 to 5?"
    assert await example.on_slack_event(bot, slack("5", "Ev3")) == "Thank you! Anything else?"
    assert await example.on_slack_event(bot, slack("5", "Ev3")) is None
    assert await example.on_slack_event(bot, slack("great", "Ev4")) == "Noted: 5 stars, 'great'."


async def test_on_whatsapp_one_notification_may_bring_several_messages(backend: Backend) -> None:
    bot = example.whatsapp_bot(backend.storage())
    first = whatsapp(("49123", "wamid.1", "hello"), ("49123", "wamid.2", "4"), ("49999", "wamid.3", "hi"))
    assert await example.on_whatsapp_notification(bot, first) == [
        ("49123", "How was it, from 1 to 5?"),
        ("49123", "Thank you! Anything else?"),
        ("49999", "How was it, from 1 to 5?"),
    ]
    assert await example.on_whatsapp_notification(bot, first) == []
    assert await example.on_whatsapp_notification(bot, whatsapp(("49123", "wamid.4", "no"))) == [
        ("49123", "Noted: 4 stars, 'no'.")
    ]


async def test_a_status_is_not_handled_as_a_message(backend: Backend) -> None:
    bot = example.whatsapp_bot(backend.storage())
    notification = whatsapp()
    del notification["entry"][0]["changes"][0]["value"]["messages"]
    assert await example.on_whatsapp_notification(bot, notification) == []


@pytest.mark.parametrize(
    "payload",
    [
        {"type": "url_verification", "challenge": "x", "token": "t"},
        slack_event(type="message", subtype="bot_message", bot_id="B1", text="hi"),
        slack_event(type="message", user="U2", bot_id="B1", text="hi"),
        slack_event(type="message", subtype="message_changed", message={"user": "U1", "text": "hi"}),
        slack_event(type="message", subtype="channel_join", user="U1", text="<@U1> has joined the channel"),
        slack_event(type="reaction_added", user="U1", reaction="thumbsup"),
        slack_event(type="team_join", user={"id": "U1"}),
    ],
    ids=lambda payload: payload.get("event", payload).get("subtype") or payload.get("event", payload)["type"],
)
async def test_on_slack_events_without_a_user_message_are_not_answered(
    backend: Backend, payload: dict[str, Any]
) -> None:
    bot = example.slack_bot(backend.storage())
    assert await example.on_slack_event(bot, payload) is None
    assert await example.slack_router(bot).handle(payload) == []


async def test_on_whatsapp_pictures_and_account_events_are_not_answered(backend: Backend) -> None:
    bot = example.whatsapp_bot(backend.storage())
    notification = whatsapp(("49123", "wamid.1", "hello"))
    changes = notification["entry"][0]["changes"]
    changes[0]["value"]["messages"].insert(0, {"from": "49123", "id": "wamid.0", "type": "image", "image": {"id": "9"}})
    changes.insert(0, {"field": "account_update", "value": {"event": "VERIFIED_ACCOUNT"}})
    assert await example.on_whatsapp_notification(bot, notification) == [("49123", "How was it, from 1 to 5?")]


async def test_on_slack_a_router_repeats_the_answer_to_a_redelivered_event(backend: Backend) -> None:
    router = example.slack_router(example.slack_bot(backend.storage()))
    question = [{"method": "chat.postMessage", "channel": "D1", "text": "How was it, from 1 to 5?"}]
    thanked = [{"method": "chat.postMessage", "channel": "D1", "text": "Thank you! Anything else?"}]
    for _ in range(2):
        assert await router.handle(slack("hello", "Ev1")) == question
    for _ in range(3):
        assert await router.handle(slack("5", "Ev2")) == thanked
    assert await router.handle(slack("hello", "Ev1")) == [], "that one is answered long since"
    (noted,) = await router.handle(slack("great", "Ev3"))
    assert noted["text"] == "Noted: 5 stars, 'great'."


async def test_on_whatsapp_a_router_repeats_an_answer_when_a_later_message_failed() -> None:
    # Nothing is stored for the second message.
    storage = FaultyStorage(before=range(3, 1000), patience=0)
    router = example.whatsapp_router(example.whatsapp_bot(storage))
    first, second = example.whatsapp_messages(whatsapp(("49123", "wamid.1", "hi"), ("49999", "wamid.2", "hi")))
    answer = [{"method": "messages", "to": "49123", "text": {"body": "How was it, from 1 to 5?"}}]
    assert await router.handle(first) == answer
    with pytest.raises(StorageUnavailable):
        await router.handle(second)
    storage.before = ()
    assert await router.handle(first) == answer
    assert await router.handle(second) == [{**answer[0], "to": "49999"}]


async def test_the_question_is_repeated_after_an_answer_that_is_not_a_number(backend: Backend) -> None:
    bot = example.slack_bot(backend.storage())
    for number in range(2):
        assert await example.on_slack_event(bot, slack("hello", f"Ev{number}")) == "How was it, from 1 to 5?"


async def test_it_runs_as_a_program(capsys: Any) -> None:
    await example.main()
    assert "Noted: 5 stars, 'great tea'." in capsys.readouterr().out
