"""Long texts and broken markup arrive, and each piece of a text is retried on its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stepwell import MemoryStorage
from stepwell.errors import BotUnavailable
from stepwell.fsm import FSM, Router, Update
from stepwell.telegram import BotClient, Sender, broadcast
from stepwell.telegram.receiving.outcome import Unfinished
from stepwell.turns import Turn, Turns
from tests.telegram.documented_api import DocumentedAPI
from tests.telegram.virtual_time import VirtualTimeLoop
from tests.until import until

USER, TOKEN = 42, "42:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
LONG = "word " * 2000
PIECES = [LONG[:4094], LONG[4095:8189], LONG[8190:].rstrip()]


def play(scene: Callable[[DocumentedAPI], Awaitable[None]]) -> DocumentedAPI:
    """Run a scene with a server in virtual time."""

    async def run() -> DocumentedAPI:
        async with DocumentedAPI().serving() as api:
            await scene(api)
        return api

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(run())


def message(text: str) -> Update:
    chat = {"id": USER, "type": "private"}
    return Update({"update_id": 1, "message": {"message_id": 1, "date": 1, "chat": chat, "from": chat, "text": text}})


def test_a_piece_that_was_sent_is_not_sent_again_when_the_next_one_has_to_wait() -> None:
    async def scene(api: DocumentedAPI) -> None:
        router = Router(FSM("my_bot", storage=MemoryStorage(), flows=[]))

        @router.on()
        async def answer(ctx: Any) -> None:
            ctx.answer(LONG)

        api.ask_to_wait(USER, 300, after=3)
        async with BotClient(TOKEN, api=api.url, patience=20) as client:
            unfinished = Unfinished(message("Hi"), client)
            with pytest.raises(BotUnavailable):
                await unfinished.process(router, Sender(client))
            assert api.texts(USER) == PIECES[:2]
            await asyncio.sleep(300)
            await unfinished.process(router, Sender(client))

    assert play(scene).texts(USER) == PIECES


async def test_a_long_answer_of_a_turn_is_stored_and_sent_in_pieces() -> None:
    turns = Turns("my_bot", storage=MemoryStorage(), collect=0)
    sent: list[str] = []

    @turns.handler
    async def answer(turn: Turn) -> None:
        turn.answer(LONG)

    def send(call: dict[str, Any]) -> None:
        if len(sent) == 2 and not failures:
            failures.append(call)
            raise BotUnavailable("sendMessage", None, "away")
        sent.append(call["text"])

    failures: list[Any] = []
    async with turns.worker(send=send):
        await turns.admit(message("Hi").raw)
        await until(lambda: len(sent) == 3)
    assert "".join(sent) == LONG


def test_broken_markup_arrives_as_text() -> None:
    async def scene(api: DocumentedAPI) -> None:
        async with BotClient(TOKEN, api=api.url) as client:
            sender = Sender(client)
            assert await sender.send({"method": "sendMessage", "chat_id": USER, "text": "<b>a", "parse_mode": "HTML"})
            assert await sender.send({"method": "sendMessage", "chat_id": USER, "text": LONG})

    assert play(scene).texts(USER) == ["<b>a", *PIECES]


def test_an_edit_that_changes_nothing_is_no_refused_answer() -> None:
    async def scene(api: DocumentedAPI) -> None:
        refused: list[Any] = []
        async with BotClient(TOKEN, api=api.url) as client:
            sender = Sender(client, on_send_error=lambda call, error: refused.append(error))
            await sender.send({"method": "sendMessage", "chat_id": USER, "text": "Hello"})
            edit = {"method": "editMessageText", "chat_id": USER, "message_id": 1, "text": "Hello"}
            assert await sender.send(edit)
        assert refused == []

    play(scene)


def test_a_broadcast_splits_its_text_and_sends_broken_markup_as_text() -> None:
    async def scene(api: DocumentedAPI) -> None:
        async with BotClient(TOKEN, api=api.url) as client, MemoryStorage() as storage:
            result = await broadcast(client, [USER, 43], LONG, storage=storage, flow_id="long")
            assert result.sent == 2
            call = {"method": "sendMessage", "text": "<b>a", "parse_mode": "HTML"}
            assert (await broadcast(client, [44], call, storage=storage, flow_id="broken")).sent == 1

    api = play(scene)
    assert [api.texts(chat) for chat in (USER, 43, 44)] == [PIECES, PIECES, ["<b>a"]]


def test_a_stream_of_a_handler_completes_the_same_message_after_a_kill() -> None:
    words = [f"word{number} " for number in range(200)]

    async def scene(api: DocumentedAPI) -> None:
        storage = MemoryStorage()
        group = {"id": -7, "type": "group"}
        message = {"message_id": 1, "date": 1, "chat": group, "from": {"id": USER}, "text": "Hi"}
        update = Update({"update_id": 1, "message": message})

        def make_router() -> Router:
            router = Router(FSM("my_bot", storage=storage, flows=[]))

            @router.on()
            async def answer(ctx: Any) -> None:
                async with ctx.stream() as out:
                    for word in words:
                        out.write(word)
                        await asyncio.sleep(0.1)

            return router

        async with storage, BotClient(TOKEN, api=api.url) as client:
            for seconds in (12, 60):
                router = make_router()
                assert router.fsm is not None
                router.fsm.client = client
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await Unfinished(update, client).process(router, Sender(client))
                assert len(api.texts(-7)) == 1

    api = play(scene)
    assert api.texts(-7) == ["".join(words).rstrip()]
    assert len(api.times("sendMessage")) == 1 and api.statuses() == {200}
