"""The end of a turn: one guarded write, answers at least once and in order, failures, history."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest

from stepwell import MemoryStorage
from stepwell.engine import Get
from stepwell.errors import BotApiError, BotUnavailable, UsageError
from stepwell.storage import Apply, Operation
from stepwell.turns import MessageTaken, Turn, TurnEnded, Turns, TurnStarted, subscribe
from stepwell.turns.record import HANDLED, WORKING_PARTS
from tests.backends import Backend
from tests.constants import Constants
from tests.turns.people import ANN, People, state_of, working
from tests.until import forever, until


def echo(storage: Any, **options: Any) -> Turns:
    turns = Turns("bot", storage=storage, **{"collect": 0.0, **options})

    @turns.handler
    async def answer(turn: Turn) -> None:
        turn.answer(f"[{' '.join(message.text for message in turn.messages)}]")

    return turns


def words(people: People) -> list[str]:
    return " ".join(people.texts).replace("[", "").replace("]", "").split()


async def strand(turns: Turns, rounds: int, pause: float) -> list[str]:
    """Send messages at the moment when turns end; return the messages that no turn has answered."""
    people, rng = People(), random.Random(7)
    async with working(turns, people):
        for number in range(rounds):
            await turns.admit(people.message(f"m{number}"))
            await asyncio.sleep(rng.uniform(0, pause))
        with contextlib.suppress(TimeoutError):
            await until(lambda: words(people), lambda found: len(found) >= rounds, patience=60 if pause else 3)
    answered = words(people)
    assert len(answered) == len(set(answered)), "none is answered twice"
    return [f"m{number}" for number in range(rounds) if f"m{number}" not in answered]


@pytest.mark.every_backend
async def test_messages_that_arrive_at_the_end_of_a_turn_are_not_stranded(backend: Backend) -> None:
    assert await strand(echo(backend.storage()), 1000 if backend.name in ("memory", "sqlite") else 200, 0.005) == []


class WithoutGuard(MemoryStorage):
    """A seeded bug: the end of a turn does not depend on what has arrived meanwhile."""

    async def perform(self, operation: Operation) -> Any:
        await asyncio.sleep(0)
        if isinstance(operation, Apply) and operation.guard is not None and operation.guard.token is not None:
            from stepwell.engine import replaced

            operation = replaced(operation, guard=replaced(operation.guard, version=None, absent=False))
        return await super().perform(operation)


async def test_a_build_without_the_guard_strands_some() -> None:
    assert await strand(echo(WithoutGuard()), 1000, 0.0) != []


async def test_an_answer_is_sent_again_until_telegram_accepts_it_and_before_the_next_one(constants: Constants) -> None:
    turns, people = echo(MemoryStorage()), People()
    failures = [BotUnavailable("sendMessage", 429, "Too Many Requests", retry_after=1.0) for _ in range(2)]

    async def send(call: dict[str, Any]) -> None:
        if failures:
            raise failures.pop()
        await people.send(call)

    constants(resend=(0.05, 0.05))
    async with turns.worker(send=send, drain=0):
        await turns.admit(people.message("one"))
        await until(lambda: not failures)
        await turns.admit(people.message("two"))
        assert await people.answered(2) == ["[one]", "[two]"]
        await state_of(turns, "idle")


async def test_a_refused_answer_is_dropped_and_the_next_ones_are_sent() -> None:
    turns, people = echo(MemoryStorage()), People()

    async def send(call: dict[str, Any]) -> None:
        if call["text"] == "[one]":
            raise BotApiError("sendMessage", 400, "Bad Request: chat not found")
        await people.send(call)

    async with turns.worker(send=send, drain=0):
        await turns.admit(people.message("one"))
        await state_of(turns, "idle")
        await turns.admit(people.message("two"))
        assert await people.answered() == ["[two]"]


async def test_a_handler_that_raises_fails_its_turn_visibly_and_the_messages_behind_it_go_on() -> None:
    turns, people = Turns("bot", storage=MemoryStorage(), collect=0.0), People()
    broken = [True]

    @turns.handler
    async def answer(turn: Turn) -> None:
        if turn.text == "bad" and broken:
            raise ValueError("no model, token 123456:ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghi")
        turn.answer(turn.text)

    async with working(turns, people):
        await turns.admit(people.message("bad"))
        await until(lambda: people.texts)
        await turns.admit(people.message("good"))
        assert (await people.answered(2))[1] == "good"
        assert "went wrong" in people.texts[0]
        await state_of(turns, "idle")
        (failed,) = (await turns.status(ANN)).failed
        assert failed.texts == ("bad",) and failed.attempts == 1
        assert failed.error.startswith("ValueError: no model") and "ABCDEF" not in failed.error
        assert [status.conversation async for status in turns.conversations(failed=True)] == [ANN]
        assert not await turns.retry("unknown")
        broken.clear()
        assert await turns.retry(failed.id)
        assert (await people.answered(3))[2] == "bad"
        await state_of(turns, "idle")
        assert (await turns.status(ANN)).failed == ()
        assert [status async for status in turns.conversations(failed=True)] == []


async def test_a_failed_turn_that_is_retried_gets_what_its_tools_have_returned() -> None:
    turns, people = Turns("bot", storage=MemoryStorage(), collect=0.0), People()
    paid: list[str] = []

    async def pay(what: str) -> str:
        paid.append(what)
        return f"paid {what}"

    @turns.handler
    async def answer(turn: Turn) -> None:
        said = await turn.tool(pay, turn.text)
        if len(paid) == 1 and not people.texts:
            raise ValueError("no model")
        turn.answer(said)

    async with turns.storage, working(turns, people):
        await turns.admit(people.message("1 EUR"))
        await until(lambda: people.texts)
        await state_of(turns, "idle")
        (failed,) = (await turns.status(ANN)).failed
        await turns.admit(people.message("2 EUR"))
        await people.answered(2)
        assert await turns.retry(failed.id)
        assert await people.answered(3) == [people.texts[0], "paid 2 EUR", "paid 1 EUR"]
        await state_of(turns, "idle")
        stored = await turns.storage.perform(Get(turns.address(ANN), WORKING_PARTS))
        assert [name for name in stored.parts if name != HANDLED] == [], "nothing is left behind"
    assert paid == ["1 EUR", "2 EUR"]


async def test_a_turn_whose_process_dies_each_time_is_set_aside() -> None:
    from tests.turns.test_tools import Agent, die

    async def dying(turn: Turn) -> None:
        if turn.text == "poison":
            await die(agent)
        turn.answer(turn.text)

    agent, people = Agent(MemoryStorage(), dying, attempts=3), People()
    async with working(agent.turns, people):
        await agent.turns.admit(people.message("poison"))
        await until(lambda: agent.attempts == [1, 2, 3])
        await agent.turns.admit(people.message("good"))
        assert (await people.answered(2))[1] == "good"
        (failed,) = (await agent.turns.status(ANN)).failed
        assert failed.texts == ("poison",) and "ended 3 times" in failed.error
        assert await agent.turns.drop(failed.id) and (await agent.turns.status(ANN)).failed == ()


async def test_a_generator_streams_its_answer_and_history_keeps_both_sides() -> None:
    turns, people = Turns("bot", storage=MemoryStorage(), collect=0.0), People()
    known: list[Any] = []

    @turns.handler
    async def answer(turn: Turn) -> Any:
        known.append(await turn.history.read(last=2))
        for piece in ("Hello ", turn.user.first_name if turn.user else ""):
            yield piece

    async with working(turns, people):
        await turns.admit(people.message("hi"))
        assert await people.answered() == ["Hello User 42"]
        await state_of(turns, "idle")
        await turns.admit(people.message("again"))
        await people.answered(2)
    assert known == [
        [],
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello User 42"}],
    ]


@pytest.mark.every_backend
async def test_history_is_stored_with_the_end_of_the_turn_and_compacted_beside_it(backend: Backend) -> None:
    turns, people = Turns("bot", storage=backend.storage(), collect=0.0), People()
    go_on = asyncio.Event()

    @turns.handler
    async def answer(turn: Turn) -> None:
        await turn.history.append(turn.text)
        assert (await turn.history.read())[-1] == turn.text
        if turn.text == "three":
            entries = await turn.history.entries()
            assert await turn.history.compact(entries[-1], ["summary"])
            go_on.set()
        turn.answer("ok")

    outside = turns.history(ANN)
    async with working(turns, people):
        for number, text in enumerate(("one", "two", "three"), 1):
            await turns.admit(people.message(text))
            await people.answered(number)
            await state_of(turns, "idle")
        assert await outside.read() == ["summary", "three"]
        await outside.append("from outside")
        await turns.admit(people.message("four"))
        await people.answered(4)
        await state_of(turns, "idle")
        assert await outside.read(last=2) == ["from outside", "four"]
        await outside.clear()
        assert await outside.read() == []
        assert (await turns.admit(people.message("five"))).outcome == "taken"
        await people.answered(5)
        await state_of(turns, "idle")
        assert await outside.read() == ["five"]


async def test_a_turn_that_has_ended_takes_no_more_answers() -> None:
    turns, people = Turns("bot", storage=MemoryStorage(), collect=0.0), People()
    kept: list[Turn] = []

    @turns.handler
    async def answer(turn: Turn) -> None:
        kept.append(turn)
        with pytest.raises(UsageError, match="no client"):
            turn.bot.id
        turn.answer("ok")

    async with working(turns, people):
        await turns.admit(people.message("hi"))
        await people.answered()
        await state_of(turns, "idle")
    with pytest.raises(UsageError, match="has ended"):
        kept[0].answer("late")


async def test_events_tell_of_messages_and_turns() -> None:
    turns, people = echo(MemoryStorage()), People()
    own: list[str] = []
    found: list[Any] = []
    unsubscribe = subscribe(found.append)
    turns.subscribe(lambda event: own.append(type(event).__name__))
    async with working(turns, people):
        await turns.admit(people.message("hi"))
        await people.answered()
        await state_of(turns, "idle")
    unsubscribe()
    assert own == ["MessageTaken", "TurnStarted", "TurnEnded"]
    taken = next(event for event in found if isinstance(event, MessageTaken))
    assert (taken.outcome, taken.waiting, taken.update) == ("taken", 1, 1)
    started = next(event for event in found if isinstance(event, TurnStarted))
    ended = next(event for event in found if isinstance(event, TurnEnded))
    assert (started.conversation, started.messages, started.updates) == (ANN, 1, (1,))
    assert ended.how == "answered" and ended.seconds >= 0


async def test_the_end_of_the_block_interrupts_a_turn_which_goes_on_in_the_next_worker_at_once() -> None:
    storage, people = MemoryStorage(), People()
    await storage.open()
    turns = Turns("bot", storage=storage, collect=0.0, attempts=1, lease=60)
    attempts: list[int] = []

    @turns.handler
    async def answer(turn: Turn) -> None:
        attempts.append(turn.attempt)
        if len(attempts) == 1:
            await forever()
        turn.answer(turn.text)

    async with working(turns, people):
        await turns.admit(people.message("hi"))
        await until(lambda: attempts)
    assert (await turns.status(ANN)).state == "running"
    async with working(turns, people):
        assert await people.answered() == ["hi"]
    assert attempts == [1, 1]
