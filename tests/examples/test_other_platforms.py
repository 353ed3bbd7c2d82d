from __future__ import annotations

from typing import Any

from examples import other_platforms as example
from tests.backends import Backend


def slack(text: str, event_id: str, *, user: str = "U1", team: str = "T1") -> dict[str, Any]:
    return {
        "type": "event_callback",
        "team_id": team,
        "event_id": event_id,
        "event": {"type": "message", "channel": "D1", "user": user, "text": text, "ts": "1767225600.000100"},
    }


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


async def test_on_slack_teams_are_apart_and_an_event_counts_once(backend: Backend) -> None:
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


async def test_a_status_is_no_message(backend: Backend) -> None:
    bot = example.whatsapp_bot(backend.storage())
    notification = whatsapp()
    del notification["entry"][0]["changes"][0]["value"]["messages"]
    assert await example.on_whatsapp_notification(bot, notification) == []


async def test_it_runs_as_a_program(capsys: Any) -> None:
    await example.main()
    assert "Noted: 5 stars, 'great tea'." in capsys.readouterr().out
