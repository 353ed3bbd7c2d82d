"""The records of turns belong to a bot and to people: they are copied, encrypted and forgotten with them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import MemoryStorage, SealedStorage, copy_records
from stepwell.errors import InvalidOption, KeyMissing, OutcomeUnknown
from stepwell.fsm import FSM
from stepwell.record import TURNS
from stepwell.storage import Apply, Get, Operation
from stepwell.storage.sealed import new_key, rotate_keys
from stepwell.turns import Turn, Turns
from tests.backends import Backend
from tests.turns.people import ANN, People, state_of, working
from tests.until import until


def turns_of(bot: str, storage: object) -> Turns:
    turns = Turns(bot, storage=storage, collect=0.0)  # type: ignore[arg-type]

    @turns.handler
    async def answer(turn: Turn) -> None:
        turn.answer(turn.text.upper())

    return turns


async def test_a_bot_is_copied_with_its_turns(backend: Backend) -> None:
    source, target = backend.storage(), backend.storage()
    for bot in ("bot", "other"):
        await turns_of(bot, source).admit(People().message("one"))
    copied = await copy_records(source, target, namespaces=["bot"])
    assert (copied.written, copied.extra) == (1, 0)
    assert await target.namespaces() == [TURNS]
    people = People()
    async with working(turns_of("bot", target), people):
        assert await people.answered() == ["ONE"]
    # Those of other bots are not removed.
    await turns_of("other", target).admit(People().message("two"))
    again = await copy_records(source, target, namespaces=["bot"], remove=True)
    assert again.removed == 0
    with pytest.raises(InvalidOption, match="no records of the bot 'third'"):
        await copy_records(source, target, namespaces=["third"])


async def test_the_keys_of_encrypted_turns_are_rotated_with_their_bot() -> None:
    inner, (old, new, names) = MemoryStorage(), (new_key() for _ in range(3))
    async with SealedStorage(inner, keys=[old], names_key=names) as storage:
        for bot in ("bot", "other"):
            people = People()
            await turns_of(bot, storage).admit(people.message("secret text"))
        texts = [(await inner.perform(Get(each.address, parts=True))) for each in [e async for e in inner.scan(TURNS)]]
        assert texts
        assert all("secret text" not in str(each) for each in texts)
    await inner.open()
    async with SealedStorage(inner, keys=[new, old], names_key=names) as storage:
        rotated = await rotate_keys(storage, namespaces=["bot"])
        assert (rotated.rewritten, rotated.unreadable, rotated.busy) == (1, [], [])
    await inner.open()
    async with SealedStorage(inner, keys=[new], names_key=names) as storage:
        status = await turns_of("bot", storage).status(ANN)
        assert [message.text for message in status.waiting] == ["secret text"]
        with pytest.raises(KeyMissing):
            await turns_of("other", storage).status(ANN)


async def test_forget_deletes_the_turns_of_a_user_and_of_a_chat(backend: Backend) -> None:
    storage, people = backend.storage(), People()
    turns, other = turns_of("bot", storage), turns_of("other", storage)
    fsm = FSM("bot", storage=storage, flows=[], run_timers=False)
    await turns.admit(people.message("one"))
    await turns.admit(people.message("two", user=7, chat=-100))
    await other.admit(people.message("three"))
    assert await fsm.forget(user=42) == 1
    assert (await turns.status(ANN)).state == "idle"
    assert await fsm.forget(chat=-100) == 1
    assert [each async for each in turns.conversations()] == []
    # Those of another bot stay.
    assert len((await other.status(ANN)).waiting) == 1


async def test_a_running_turn_whose_user_is_forgotten_writes_and_sends_nothing(backend: Backend) -> None:
    storage, people = backend.storage(), People()
    turns = Turns("bot", storage=storage, collect=0.0)
    forgotten = asyncio.Event()

    @turns.handler
    async def answer(turn: Turn) -> None:
        await FSM("bot", storage=storage, flows=[], run_timers=False).forget(user=42)
        forgotten.set()
        turn.answer("late")

    async with working(turns, people):
        await turns.admit(people.message("first"))
        await forgotten.wait()
        assert turns.runner is not None
        await until(lambda: turns.runner.running, lambda running: not running)  # type: ignore[union-attr, attr-defined]
        assert [each async for each in turns.conversations()] == []
    assert people.sent == []


class LosesResults(MemoryStorage):
    """Applies the first write that ends a turn, or that steers it, and loses its result."""

    lost = 0
    steers = False

    async def perform(self, operation: Operation) -> Any:
        result = await super().perform(operation)
        ends = isinstance(operation, Apply) and (
            self.steers or any(name.startswith("i:") and text is None for name, text in operation.change.parts.items())
        )
        if ends and not self.lost:
            self.lost += 1
            raise OutcomeUnknown(operation.address.text, "the connection broke before the result arrived")
        return result


async def test_a_turn_whose_end_is_stored_but_not_confirmed_does_not_run_again() -> None:
    storage, people, runs = LosesResults(), People(), []
    turns = Turns("bot", storage=storage, collect=0.0, on_busy="queue")

    @turns.handler
    async def answer(turn: Turn) -> None:
        runs.append(turn.text)
        if turn.text == "one":
            await turns.admit(people.message("two"))
        turn.answer(turn.text)

    async with working(turns, people):
        await turns.admit(people.message("one"))
        assert await people.answered(2) == ["one", "two"]
        await state_of(turns, "idle")
        assert storage.lost == 1
    assert runs == ["one", "two"]
    assert people.texts == ["one", "two"]


async def test_a_message_that_steers_is_given_to_the_handler_if_its_write_is_not_confirmed() -> None:
    storage, people = LosesResults(), People()
    turns = Turns("bot", storage=storage, collect=0.0, on_busy="steer")

    @turns.handler
    async def answer(turn: Turn) -> None:
        await turns.admit(people.message("two"))
        storage.steers = True
        found = await turn.steered()
        storage.steers = False
        turn.answer(" ".join(message.text for message in found))

    async with working(turns, people):
        await turns.admit(people.message("one"))
        assert await people.answered() == ["two"]
        await state_of(turns, "idle")
    assert storage.lost == 1
