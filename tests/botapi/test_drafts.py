"""What a bot is writing: drafts, their Stop button and their end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiogram.types import Update

from stepwell.botapi import BotAPI, NotPossible, Person, WorldEvent
from stepwell.botapi.methods.messages import drafts
from tests.botapi.conftest import Client


async def test_a_draft_is_shown_and_changed_until_the_bot_sends_the_message(call: Client, chat: Person) -> None:
    assert chat.draft is None
    assert await call("sendMessageDraft", chat_id=42, draft_id=7, text="") is True
    assert await chat.preview() == ""
    assert await call("sendMessageDraft", chat_id=42, draft_id=7, text="<b>One</b>", parse_mode="HTML", can_stop=True)
    assert await chat.preview() == "One"
    assert chat.draft == {
        "draft_id": 7, "text": "One", "entities": [{"type": "bold", "offset": 0, "length": 3}], "can_stop": True,
        "keep_on_stop": False,
    }  # fmt: skip
    # A draft is no message, and a message of the user leaves it.
    assert chat.messages == []
    await chat.send("Hurry!")
    assert chat.draft is not None
    await call("sendMessage", chat_id=42, text="One two")
    assert chat.draft is None
    assert await chat.answer() == "One two"


async def test_a_draft_disappears_30_seconds_after_its_last_change() -> None:
    now = 1_700_000_000.0
    async with BotAPI(clock=lambda: now) as api:
        bot = api.bot("my_bot")
        chat = api.chat(bot)
        call = Client(api, bot.token)
        await call("sendMessageDraft", chat_id=42, draft_id=1, text="a")
        now += 20
        await call("sendMessageDraft", chat_id=42, draft_id=1, text="a b")
        now += 29
        assert chat.draft is not None
        now += 1
        assert chat.draft is None
        await call.http.aclose()


async def test_the_end_of_a_draft_is_an_event(
    call: Client, chat: Person, api: BotAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    ended = asyncio.Event()

    def see(event: WorldEvent) -> None:
        if event.kind == "draft":
            seen.append(event.body.get("text"))
            if not event.body:
                ended.set()

    api.world.watch(see)
    await call("sendMessageDraft", chat_id=42, draft_id=1, text="a")
    monkeypatch.setattr(drafts, "SHOWN", 0.05)
    await call("sendMessageDraft", chat_id=42, draft_id=1, text="a b")
    await asyncio.wait_for(ended.wait(), 10)
    assert seen == ["a", "a b", None]
    assert api.world.timers == {}


async def test_the_stop_button_sends_an_update_without_a_user(call: Client, chat: Person) -> None:
    await call("sendMessageDraft", chat_id=42, draft_id=12, text="Once upon", can_stop=True)
    await chat.stop()
    (update,) = await call("getUpdates")
    assert update["stopped_message_generation"] == {
        "chat": {"id": 42, "first_name": "Alice", "type": "private"}, "draft_id": 12}  # fmt: skip
    stopped = Update.model_validate(update).stopped_message_generation
    assert stopped is not None
    assert stopped.draft_id == 12
    assert chat.draft is None
    with pytest.raises(NotPossible, match="the bot writes nothing here"):
        await chat.stop()


async def test_a_draft_that_is_kept_has_no_second_stop_button(call: Client, chat: Person) -> None:
    await call("sendMessageDraft", chat_id=42, draft_id=12, text="Once", can_stop=True, keep_on_stop=True)
    await chat.stop()
    assert chat.draft is not None
    assert chat.draft["text"] == "Once"
    with pytest.raises(NotPossible, match="without a Stop button"):
        await chat.stop()
    await call("sendMessage", chat_id=42, text="Once.")
    assert chat.draft is None


async def test_a_bot_that_asks_for_no_such_updates_gets_none(call: Client, chat: Person) -> None:
    await call("getUpdates", allowed_updates=["message"])
    await call("sendMessageDraft", chat_id=42, draft_id=1, text="x", can_stop=True)
    await chat.stop()
    assert await call("getUpdates") == []


@pytest.mark.parametrize("chat_type", ["group", "supergroup", "channel"])
async def test_drafts_are_for_private_chats_only(call: Client, chat: Person, chat_type: str) -> None:
    chat.group(-5, type=chat_type)
    refused = (400, "Bad Request: TEXTDRAFT_PEER_INVALID")
    assert await call("sendMessageDraft", chat_id=-5, draft_id=1, text="x") == refused
    assert await call("sendRichMessageDraft", chat_id=-5, draft_id=1, rich_message={"html": "x"}) == refused


async def test_a_draft_is_refused_as_telegram_does(call: Client, chat: Person) -> None:
    draft = {"chat_id": 42, "text": "x"}
    assert await call("sendMessageDraft", **draft) == (400, "Bad Request: RANDOM_ID_INVALID")
    assert await call("sendMessageDraft", **draft, draft_id=0) == (400, "Bad Request: RANDOM_ID_INVALID")
    long = {**draft, "draft_id": 1, "text": "x" * 4097}
    assert await call("sendMessageDraft", **long) == (400, "Bad Request: message is too long")
    assert await call("sendMessageDraft", **{**long, "text": "x" * 4096}) is True
    broken = {**draft, "draft_id": 1, "text": "<b>x", "parse_mode": "HTML"}
    code, why = await call("sendMessageDraft", **broken)
    assert (code, why.partition(": Can't")[0]) == (400, "Bad Request: can't parse entities")
    topic = {**draft, "draft_id": 1, "message_thread_id": 5}
    assert await call("sendMessageDraft", **topic) == (400, "Bad Request: message thread not found")
    await chat.block()
    assert await call("sendMessageDraft", **draft, draft_id=1) == (403, "Forbidden: bot was blocked by the user")


async def test_a_test_can_wait_for_a_draft_and_is_told_if_there_is_none(call: Client, chat: Person) -> None:
    waiting = asyncio.create_task(chat.preview())
    await asyncio.sleep(0)
    await call("sendMessageDraft", chat_id=42, draft_id=1, text="Now")
    assert await waiting == "Now"
    with pytest.raises(TimeoutError, match="changed no draft here"):
        await chat.preview(timeout=0.01)


async def test_drafts_of_two_users_are_separate(call: Client, chat: Person, api: BotAPI) -> None:
    bob = chat.user(43, first_name="Bob")
    await call("sendMessageDraft", chat_id=42, draft_id=1, text="for Alice")
    await call("sendMessageDraft", chat_id=43, draft_id=2, text="for Bob")
    events: list[WorldEvent] = []
    api.world.watch(events.append)
    await call("sendMessage", chat_id=43, text="Done.")
    assert (chat.draft or {})["text"] == "for Alice"
    assert bob.draft is None
    assert [event.kind for event in events] == ["draft", "message", "call"]
