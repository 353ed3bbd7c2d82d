"""Replies of people who take over from the agent: stored first, sent in order, also while a turn runs or asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from stepwell import MemoryStorage
from stepwell.errors import BotUnavailable, InvalidOption
from stepwell.storage import Storage
from stepwell.turns import Turn, Turns
from tests.backends import Backend
from tests.constants import Constants
from tests.turns.people import ANN, People, working
from tests.until import until


@pytest.fixture
async def storage(backend: Backend) -> AsyncIterator[Storage]:
    async with backend.storage(backend.place()) as storage:
        yield storage


@pytest.mark.every_backend
async def test_a_reply_is_sent_while_a_turn_runs_and_before_its_answer(storage: Storage) -> None:
    turns, people = Turns("my_bot", storage=storage, collect=0.0), People()
    running, go_on = asyncio.Event(), asyncio.Event()

    @turns.handler
    async def answer(turn: Turn) -> None:
        running.set()
        await go_on.wait()
        turn.answer("of the agent")

    async with working(turns, people):
        await turns.admit(people.message("Hello"))
        await asyncio.wait_for(running.wait(), 60)
        # As another process does, which has no worker.
        other = Turns("my_bot", storage=storage)
        await other.reply(ANN, "of a person")
        await other.reply(ANN, "and more")
        assert await people.answered(2) == ["of a person", "and more"]
        go_on.set()
        assert await people.answered(3) == ["of a person", "and more", "of the agent"]
        assert people.sent[0]["chat_id"] == 42
        await until(lambda: turns.status(ANN), lambda status: status.state == "idle" and status.unsent == 0)


@pytest.mark.every_backend
async def test_a_reply_that_comes_with_the_end_of_a_turn_is_not_left_behind(storage: Storage) -> None:
    turns, people = Turns("my_bot", storage=storage, collect=0.0), People()
    other = Turns("my_bot", storage=storage)

    @turns.handler
    async def answer(turn: Turn) -> None:
        turn.answer("of the agent")
        await other.reply(ANN, "of a person")

    async with working(turns, people):
        await turns.admit(people.message("Hello"))
        assert sorted(await people.answered(2)) == ["of a person", "of the agent"]
        await until(lambda: turns.status(ANN), lambda status: status.unsent == 0 and status.state == "idle")


async def test_a_reply_reaches_a_conversation_that_asks_and_one_without_a_turn() -> None:
    turns, people = Turns("my_bot", storage=MemoryStorage(), collect=0.0), People()

    @turns.handler
    async def answer(turn: Turn) -> None:
        await turn.ask("Sure?")

    async with working(turns, people):
        await turns.admit(people.message("Hello"))
        await people.answered(1)
        await turns.reply(ANN, "Somebody will look at it.")
        assert await people.answered(2) == ["Sure?", "Somebody will look at it."]
        await until(lambda: turns.status(ANN), lambda status: status.state == "asking" and status.unsent == 0)
        await turns.reply((43, 7), "Good morning")
        await people.answered(3)
        assert {name: people.sent[2][name] for name in ("chat_id", "message_thread_id")} == {
            "chat_id": 43,
            "message_thread_id": 7,
        }


async def test_a_reply_is_sent_again_until_telegram_takes_it_and_stays_in_order(constants: Constants) -> None:
    constants(resend=(0.01, 0.01))
    turns, people = Turns("my_bot", storage=MemoryStorage(), collect=0.0), People()
    tried: list[str] = []

    async def send(call: dict[str, str]) -> None:
        tried.append(call["text"])
        if len(tried) < 3:
            raise BotUnavailable("sendMessage", 502, "Bad Gateway")
        await people.send(call)

    @turns.handler
    async def answer(turn: Turn) -> None: ...

    await turns.reply(ANN, "one")
    await turns.reply(ANN, "two")
    async with turns.worker(send=send):
        assert await people.answered(2) == ["one", "two"]
    assert tried == ["one", "one", "one", "two"]


async def test_a_stop_does_not_wait_for_a_reply_that_telegram_takes_slowly() -> None:
    storage, running, slow = MemoryStorage(), asyncio.Event(), asyncio.Event()
    turns, other, stopped = Turns("my_bot", storage=storage, collect=0.0), Turns("my_bot", storage=storage), False

    async def send(call: dict[str, str]) -> None:
        slow.set()
        await asyncio.Event().wait()

    @turns.handler
    async def answer(turn: Turn) -> None:
        nonlocal stopped
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped = True

    async with turns.worker(send=send, drain=0):
        await turns.admit(People().message("Hello"))
        await asyncio.wait_for(running.wait(), 60)
        await other.reply(ANN, "of a person")
        await asyncio.wait_for(slow.wait(), 60)
        assert await other.stop(ANN)
        await until(lambda: stopped)


async def test_a_reply_to_a_conversation_of_an_identity_needs_the_chat() -> None:
    turns = Turns("my_bot", storage=MemoryStorage(), identity=lambda update: ("team", 5))
    with pytest.raises(InvalidOption, match="give chat_id="):
        await turns.reply(("team", 5), "Hello")
    await turns.reply(("team", 5), "Hello", chat_id=42)
    assert (await turns.status(("team", 5))).unsent == 1
    people = People()
    await turns.admit(people.message("Hi", user=77))
    # A tool that has only the storage does not take the numbers of a key for a chat.
    await Turns("my_bot", storage=turns.storage).reply(("team", 5), "Hi")
    assert (await turns.status(("team", 5))).unsent == 2


async def test_the_text_so_far_is_shown_while_a_turn_writes(constants: Constants) -> None:
    constants(turns_show_every=0.0)
    turns, people = Turns("my_bot", storage=MemoryStorage(), collect=0.0), People()
    go_on = asyncio.Event()

    @turns.handler
    async def answer(turn: Turn) -> None:
        async with turn.stream() as out:
            out.write("Once upon a time")
            await go_on.wait()

    async with working(turns, people):
        await turns.admit(people.message("A story"))
        status = await until(lambda: turns.status(ANN), lambda status: status.text)
        assert status.text == "Once upon a time"
        go_on.set()
        await people.answered(1)
        status = await until(lambda: turns.status(ANN), lambda status: status.state == "idle")
        assert status.text == ""


async def test_an_answer_to_a_question_of_an_earlier_turn_is_too_late() -> None:
    turns, people = Turns("my_bot", storage=MemoryStorage(), collect=0.0), People()

    @turns.handler
    async def answer(turn: Turn) -> None:
        await turn.ask("Sure?")

    async with working(turns, people):
        await turns.admit(people.message("Hello"))
        await people.answered(1)
        assert await turns.decide(ANN, "Yes", turn="earlier") == "too late"
        assert await turns.decide(ANN, "Yes", turn=(await turns.status(ANN)).turn)
