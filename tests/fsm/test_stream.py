"""``ctx.stream()``: an answer that the user sees grow, and that is stored and sent like any other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell.errors import UsageError
from stepwell.fsm import FSM, Router, command, text
from stepwell.storage import MemoryStorage, Storage
from stepwell.testing import Chat

WORDS = [f"word{number} " for number in range(5)]
TEXT = "".join(WORDS)


def make_router(storage: Storage, **options: Any) -> Router:
    router = Router(FSM("my_bot", storage=storage, flows=[], **options), remember="answers")

    @router.on(command("fail"), attempts=2)
    async def fail(ctx: Any) -> None:
        async with ctx.stream() as out:
            out.write("half of it")
            if not ctx.profile.get("again"):
                raise LookupError

    @router.on(text())
    async def answer(ctx: Any) -> None:
        ctx.answer("First.")
        async with ctx.stream(reply_markup={"inline_keyboard": []}) as out:
            for word in WORDS:
                out.write(word)
                await asyncio.sleep(0)
        ctx.answer("Last.")

    return router


async def test_a_stream_is_one_answer_between_the_others() -> None:
    async with Chat(make_router) as chat:
        assert await chat.send("Hi") == ["First.", TEXT, "Last."]
        (sent,) = [call for call in chat.calls if call.get("text") == TEXT and call["method"] == "sendMessage"]
        assert sent["reply_markup"] == {"inline_keyboard": []}
        assert await chat.redeliver() == ["First.", TEXT, "Last."]


async def test_a_stream_shows_a_draft_at_once_in_a_private_chat_and_none_in_a_group() -> None:
    async with Chat(make_router) as chat:
        await chat.send("Hi")
        drafts = [call for call in chat.calls if call["method"] == "sendMessageDraft"]
        assert len(drafts) == 1 and drafts[0]["chat_id"] == 42
        assert await chat.group(-100).send("Hi") == ["First.", TEXT, "Last."]
        assert len([call for call in chat.calls if call["method"] == "sendMessageDraft"]) == 1


async def test_a_redelivered_update_continues_the_same_draft() -> None:
    async with Chat(make_router) as chat:
        chat.kill_next()
        await chat.send("Hi")
        await chat.redeliver()
        drafts = {call["draft_id"] for call in chat.calls if call["method"] == "sendMessageDraft"}
        assert len(drafts) == 1


async def test_without_a_client_the_whole_text_is_an_answer() -> None:
    router = make_router(MemoryStorage(), parse_mode="CommonMark")
    chat = {"id": 42, "type": "private"}
    message = {"message_id": 1, "date": 1, "chat": chat, "from": chat, "text": "Hi"}
    calls = await router.handle({"update_id": 1, "message": message})
    assert [call["text"] for call in calls] == ["First.", TEXT.rstrip(), "Last."]


async def test_the_formatting_of_the_bot_is_read_once() -> None:
    router = Router(FSM("my_bot", storage=MemoryStorage(), flows=[], parse_mode="CommonMark"))

    @router.on()
    async def answer(ctx: Any) -> None:
        async with ctx.stream() as out:
            out.write("**bold** \\*stars\\*")

    async with Chat(router) as chat:
        assert await chat.send("Hi") == ["bold *stars*"]
        assert chat.calls[-1]["entities"] == [{"type": "bold", "offset": 0, "length": 4}]


async def test_a_block_that_raises_answers_nothing() -> None:
    async with Chat(make_router) as chat:
        with pytest.raises(LookupError):
            await chat.send("/fail")
        assert not [call for call in chat.calls if call["method"] == "sendMessage"]


async def test_an_update_without_a_chat_has_no_stream() -> None:
    router = Router(FSM("my_bot", storage=MemoryStorage(), flows=[]))

    @router.on()
    async def answer(ctx: Any) -> None:
        async with ctx.stream():
            pass

    with pytest.raises(UsageError, match="no chat to stream in"):
        await router.handle({"update_id": 1, "poll": {"id": "1"}})
