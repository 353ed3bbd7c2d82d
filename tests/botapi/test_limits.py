"""The flood limits, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from stepwell.botapi import BotAPI, FloodLimits
from tests.botapi.conftest import Client


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def limited(clock: Clock) -> AsyncIterator[Client]:
    api = BotAPI(port=8081, limits=True, clock=clock)
    bot = api.bot("my_bot")
    alice = api.chat(bot)
    for user in range(43, 80):
        alice.user(user)
    alice.group(-5)
    client = Client(api, bot.token)
    yield client
    await client.http.aclose()
    await api.webhooks.close()


def too_many(seconds: int) -> tuple[int, str]:
    return 429, f"Too Many Requests: retry after {seconds}"


def text(chat: int, **more: Any) -> dict[str, Any]:
    return {"chat_id": chat, "text": "x", **more}


async def test_there_are_no_limits_unless_they_are_asked_for(call: Client, chat: Any) -> None:
    for _ in range(60):
        assert "message_id" in await call("sendMessage", **text(42))


async def test_a_chat_gets_a_short_burst_and_then_one_message_a_second(limited: Client, clock: Clock) -> None:
    for _ in range(5):
        assert "message_id" in await limited("sendMessage", **text(42))
    assert await limited("sendMessage", **text(42)) == too_many(1)
    # Another chat is not affected, and a refused call does not count.
    assert "message_id" in await limited("sendMessage", **text(43))
    for _ in range(10):
        clock.now += 0.5
        assert await limited("sendMessage", **text(42)) == too_many(1)
        clock.now += 0.5
        assert "message_id" in await limited("sendMessage", **text(42))
    clock.now += 5
    for _ in range(5):
        assert "message_id" in await limited("sendMessage", **text(42))


async def test_the_answer_names_the_seconds_in_its_parameters_and_in_a_header(limited: Client) -> None:
    for _ in range(5):
        await limited("sendMessage", **text(42))
    answer = await limited.http.post("sendMessage", json=text(42))
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert answer.json()["parameters"] == {"retry_after": 1}


async def test_a_group_gets_20_messages_and_edits_a_minute(limited: Client, clock: Clock) -> None:
    begun = clock.now
    number = (await limited("sendMessage", **text(-5)))["message_id"]
    for edit in range(19):
        clock.now += 2
        edited = await limited("editMessageText", chat_id=-5, message_id=number, text=f"x {edit}")
        assert edited["text"] == f"x {edit}"
    clock.now += 2
    assert await limited("editMessageText", chat_id=-5, message_id=number, text="y") == too_many(20)
    assert await limited("sendMessage", **text(-5)) == too_many(20)
    clock.now = begun + 59.8
    assert "message_id" in await limited("sendMessage", **text(-5))


async def test_all_chats_together_get_30_messages_a_second(limited: Client, clock: Clock) -> None:
    for user in range(43, 73):
        assert "message_id" in await limited("sendMessage", **text(user))
    assert await limited("sendMessage", **text(73)) == too_many(1)
    assert "message_id" in await limited("sendMessage", **text(73, allow_paid_broadcast=True))
    clock.now += 1
    assert "message_id" in await limited("sendMessage", **text(74))


async def test_drafts_actions_and_refused_messages_do_not_count(limited: Client) -> None:
    for number in range(40):
        assert await limited("sendMessageDraft", chat_id=42, draft_id=1, text=f"x {number}") is True
        assert await limited("sendChatAction", chat_id=42, action="typing") is True
        assert (await limited("sendMessage", chat_id=42, text=""))[0] == 400
    assert (await limited("sendMessage", **text(4242)))[1] == "Bad Request: chat not found"
    assert "message_id" in await limited("sendMessage", **text(42))


async def test_an_album_counts_as_its_pictures(limited: Client, clock: Clock) -> None:
    media = [{"type": "photo", "media": "http://x.org/a.jpg"}] * 10
    assert len(await limited("sendMediaGroup", chat_id=-5, media=media)) == 10
    assert await limited("sendMessage", **text(-5)) == too_many(6)
    clock.now += 10
    # The second is within 20 a minute, the third is not.
    assert len(await limited("sendMediaGroup", chat_id=-5, media=media)) == 10
    clock.now += 10
    assert await limited("sendMediaGroup", chat_id=-5, media=media) == too_many(40)


async def test_other_limits_can_be_given(clock: Clock) -> None:
    api = BotAPI(port=8081, limits=FloodLimits(per_chat=0.5, burst=1), clock=clock)
    bot = api.bot("my_bot")
    api.chat(bot)
    client = Client(api, bot.token)
    await client("sendMessage", **text(42))
    assert await client("sendMessage", **text(42)) == too_many(2)
    api.world.limits = None
    assert "message_id" in await client("sendMessage", **text(42))
    await client.http.aclose()
