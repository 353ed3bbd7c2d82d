"""Messages are collected into turns: bursts, albums, edits, repeated updates, limits."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell import MemoryStorage
from stepwell.errors import InvalidOption, UsageError
from stepwell.fsm import Update
from stepwell.testing import Clock
from stepwell.turns import Turn, Turns
from tests.backends import Backend
from tests.turns.people import ANN, People, state_of, working


def made(storage: Any, **options: Any) -> tuple[Turns, list[list[str]]]:
    """Return turns whose handler answers with the texts of its messages, and the list of these."""
    turns = Turns("bot", storage=storage, **options)
    seen: list[list[str]] = []

    @turns.handler
    async def answer(turn: Turn) -> None:
        seen.append([message.text for message in turn.messages])
        turn.answer(turn.text or "nothing")

    return turns, seen


@pytest.mark.every_backend
async def test_messages_that_follow_each_other_become_one_turn_with_one_answer(backend: Backend) -> None:
    turns, seen = made(backend.storage(), collect=0.2)
    people = People()
    async with working(turns, people):
        for text in ("one", "two", "three"):
            assert (await turns.admit(people.message(text))).outcome == "taken"
        assert await people.answered() == ["one\ntwo\nthree"]
        await state_of(turns, "idle")
    assert seen == [["one", "two", "three"]]


async def test_a_message_renews_the_window_up_to_its_limit() -> None:
    clock = Clock()
    storage = MemoryStorage(clock=clock)
    turns, _ = made(storage, collect=1.0, at_most=2.5)
    people = People()
    shuts = []
    for _ in range(4):
        await turns.admit(people.message("x"))
        shuts.append((await turns.status(ANN)).shuts_at or 0.0)
        clock.advance(0.9)
    begun = shuts[0] - 1.0
    assert [round(at - begun, 3) for at in shuts] == [1.0, 1.9, 2.5, 2.7]


@pytest.mark.parametrize("collect", [0.0, 0.2])
async def test_an_album_is_one_turn(collect: float) -> None:
    clock = Clock()
    turns, seen = made(MemoryStorage(clock=clock), collect=collect)
    people = People()
    async with working(turns, people):
        for _ in range(4):
            await turns.admit(people.message(media_group_id="a", photo=[{"file_id": "f"}]))
            clock.advance(0.5)
        assert (await turns.status(ANN)).state == "collecting"
        clock.advance(1.0)
        turns.wake()
        await people.answered()
    assert [len(each) for each in seen] == [4]


async def test_forwarded_messages_and_a_long_paste_belong_together_without_a_window() -> None:
    clock = Clock()
    turns, _ = made(MemoryStorage(clock=clock), collect=0.0)
    people = People()
    await turns.admit(people.message("a", forward_origin={"type": "hidden_user", "sender_user_name": "Bob"}))
    await turns.admit(people.message("b" * 4096))
    status = await turns.status(ANN)
    assert status.state == "collecting" and (status.shuts_at or 0) > clock()
    assert [len(message.text) for message in status.waiting] == [1, 4096]


async def test_a_command_and_a_press_shut_the_window_and_pass_on() -> None:
    turns, _ = made(MemoryStorage(), collect=60.0, at_most=60.0)
    people = People()
    async with working(turns, people):
        await turns.admit(people.message("hello"))
        passed = await turns.admit(people.message("/help"))
        assert not passed and passed.outcome == "passed"
        assert await people.answered() == ["hello"]


@pytest.mark.every_backend
async def test_an_update_that_comes_again_is_known_while_it_waits_and_after_its_turn(backend: Backend) -> None:
    turns, seen = made(backend.storage(), collect=0.3)
    people = People()
    first = people.message("one")
    async with working(turns, people):
        assert [(await turns.admit(first)).outcome for _ in range(3)] == ["taken", "known", "known"]
        await people.answered()
        await state_of(turns, "idle")
        assert (await turns.admit(first)).outcome == "known"
        await turns.admit(people.message("two"))
        await people.answered(2)
    assert seen == [["one"], ["two"]]


async def test_the_last_thousand_updates_are_known() -> None:
    turns, _ = made(MemoryStorage(), collect=0.0, waiting=2000, waiting_bytes=10**7)
    people = People()
    updates = [people.message("x") for _ in range(1005)]
    for update in updates:
        await turns.admit(update)
    async with working(turns, people):
        await state_of(turns, "idle")
    assert (await turns.admit(updates[5])).outcome == "known"
    assert (await turns.admit(updates[4])).outcome == "taken"


async def test_an_edit_replaces_a_message_that_waits_and_else_passes() -> None:
    turns, seen = made(MemoryStorage(), collect=60.0, at_most=60.0)
    people = People()
    first = people.message("helo")
    await turns.admit(first)
    edited = people.edit(first, "hello")
    assert (await turns.admit(edited)).outcome == "edited"
    assert (await turns.admit(edited)).outcome == "known"
    async with working(turns, people):
        await turns.admit(people.message("/go"))
        await people.answered()
        await state_of(turns, "idle")
        assert (await turns.admit(people.edit(first, "hallo"))).outcome == "passed"
    assert seen == [["hello"]]


async def test_a_message_past_the_limits_is_refused_visibly() -> None:
    turns, _ = made(MemoryStorage(), collect=60.0, at_most=60.0, waiting=2)
    people = People()
    for _ in range(2):
        assert not (await turns.admit(people.message("x"))).calls
    refused = await turns.admit(people.message("x"))
    assert refused.outcome == "full" and "was not taken" in refused.calls[0]["text"]
    assert len((await turns.status(ANN)).waiting) == 2
    small, _ = made(MemoryStorage(), waiting_bytes=500)
    assert (await small.admit(people.message("x" * 1000))).outcome == "taken", "one message always fits"
    assert (await small.admit(people.message("x"))).outcome == "full"


@pytest.mark.parametrize("thread", [{}, {"message_thread_id": 7, "is_topic_message": True}])
async def test_a_draft_that_is_stopped_belongs_to_the_conversation_of_its_message(thread: dict[str, Any]) -> None:
    turns, _ = made(MemoryStorage())
    message = Update.of(People().message("a", **thread))
    draft = {"chat": {"id": 42, "type": "private"}, "draft_id": 3, **thread}
    draft.pop("is_topic_message", None)
    stopped = Update.of({"update_id": 1000, "stopped_message_generation": draft})
    assert turns.conversation_of(stopped) == turns.conversation_of(message) == (42, thread.get("message_thread_id", 0))


async def test_each_chat_and_topic_is_a_conversation_and_identity_joins_them() -> None:
    turns, _ = made(MemoryStorage(), collect=60.0)
    people = People()
    await turns.admit(people.message("a"))
    await turns.admit(people.message("b", chat=-100, message_thread_id=7, is_topic_message=True))
    assert [status.conversation async for status in turns.conversations("collecting")] == [(-100, 7), (42, 0)]
    await turns.admit(people.message("a reply in a group", chat=-200, message_thread_id=5))
    assert (await turns.status((-200, 0))).state == "collecting"
    joined, seen = made(MemoryStorage(), collect=60.0, at_most=60.0, identity=lambda update: update.user.id)
    await joined.admit(people.message("a"))
    await joined.admit(people.message("b", chat=-100))
    async with working(joined, people):
        await joined.admit(people.message("/go"))
        await people.answered()
    assert seen == [["a", "b"]] and people.sent[-1]["chat_id"] == -100, "it answers where the last message came from"


async def test_commands_services_and_bots_are_no_messages_unless_accepts_says_so() -> None:
    turns, _ = made(MemoryStorage())
    people = People()
    for update in (
        people.message("/start"),
        people.message(None, new_chat_members=[{"id": 5}]),
        {"update_id": 900, "channel_post": people.message("x")["message"] | {"from": None}},
        {"update_id": 901},
    ):
        assert (await turns.admit(update)).outcome == "passed"
    chosen, _ = made(MemoryStorage(), accepts=lambda update: update.text and update.text.startswith("bot,"))
    assert not await chosen.admit(people.message("hello"))
    assert await chosen.admit(people.message("bot, hello"))


async def test_wrong_options_and_handlers_are_refused() -> None:
    for wrong in (
        {"on_busy": "drop"},
        {"collect": -1},
        {"lease": 0},
        {"attempts": 0},
        {"waiting": True},
        {"accepts": 1},
    ):
        with pytest.raises(InvalidOption):
            Turns("bot", storage="memory://", **wrong)  # type: ignore[arg-type]
    turns = Turns("bot", storage="memory://")
    with pytest.raises(InvalidOption, match="async def"):
        turns.handler(lambda turn: None)
    with pytest.raises(UsageError, match="no handler"):
        async with turns.worker(send=print):
            pass
