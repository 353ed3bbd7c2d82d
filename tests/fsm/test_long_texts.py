"""Answers that are too long are several calls, which are stored and sent one by one."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell.errors import InvalidOption
from stepwell.fsm import FSM, Router, command
from stepwell.storage import Storage
from stepwell.testing import Chat
from tests.backends import Backend

LONG = "word " * 2000
PIECES = [LONG[:4095], LONG[4095:8190], LONG[8190:]]


def make_router(storage: Storage, **options: Any) -> Router:
    router = Router(FSM("my_bot", storage=storage, flows=[], **options), remember="answers")

    @router.on(command("long"))
    async def long(ctx: Any) -> None:
        ctx.answer(LONG)
        ctx.answer("The end.")

    @router.on(command("bold"))
    async def bold(ctx: Any) -> None:
        ctx.answer("<b>Hi</b> **you**")

    return router


async def test_a_long_answer_is_three_messages_in_order() -> None:
    async with Chat(make_router) as chat:
        assert await chat.send("/long") == [*PIECES, "The end."]


@pytest.mark.every_backend
async def test_a_long_answer_is_remembered_in_pieces_so_that_a_redelivery_has_them_all(backend: Backend) -> None:
    async with backend.storage() as storage, Chat(make_router, storage=storage) as chat:
        chat.kill_next(after_commit=True)
        await chat.send("/long")
        assert await chat.redeliver() == [*PIECES, "The end."]


async def test_a_job_and_an_update_without_a_key_split_their_texts_too() -> None:
    sent: list[str] = []
    fsm = FSM("my_bot", storage="memory://", flows=[], send=lambda call: sent.append(call["text"]))
    async with fsm, fsm.conversation(key=(42, 42)) as ctx:
        ctx.answer(LONG)
    assert sent == PIECES
    router = Router(fsm)

    @router.on()
    async def anything(ctx: Any) -> None:
        ctx.call("sendMessage", chat_id=42, text=LONG)

    calls = await router.handle({"update_id": 2, "poll": {"id": "1"}})
    assert [call["text"] for call in calls] == PIECES


async def test_the_formatting_of_the_bot_is_that_of_every_answer() -> None:
    async with Chat(lambda storage: make_router(storage, parse_mode="HTML")) as chat:
        await chat.send("/bold")
        assert chat.calls[-1]["parse_mode"] == "HTML"
    preview = {"is_disabled": True}
    options = {"parse_mode": "CommonMark", "link_preview_options": preview}
    async with Chat(lambda storage: make_router(storage, **options)) as chat:
        assert await chat.send("/bold") == ["<b>Hi</b> you"]
        assert chat.calls[-1]["entities"] == [{"type": "bold", "offset": 10, "length": 3}]
        assert chat.calls[-1]["link_preview_options"] == preview


def test_a_formatting_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidOption, match="CommonMark"):
        FSM("my_bot", storage="memory://", flows=[], parse_mode="bbcode")
