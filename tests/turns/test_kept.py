"""Values that a turn keeps for its later attempts, and questions of an attempt that continues in the middle."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell import MemoryStorage
from stepwell.errors import UnknownOutcome
from stepwell.turns import Turn, Turns
from tests.backends import Backend
from tests.turns.people import ANN, People, state_of, working
from tests.turns.test_tools import Agent, die
from tests.until import until


@pytest.mark.every_backend
async def test_what_was_kept_is_there_in_the_next_attempt_and_goes_with_the_turn(backend: Backend) -> None:
    seen: list[list[Any]] = []

    async def handler(turn: Turn) -> None:
        seen.append(turn.kept)
        if turn.attempt == 1 and turn.text == "go":
            await turn.keep({"step": 1})
            await turn.keep("two")
            assert turn.kept == [{"step": 1}, "two"]
            await die(agent)
        turn.answer("done")

    agent, people = Agent(backend.storage(), handler), People()
    async with working(agent.turns, people):
        await agent.turns.admit(people.message("go"))
        await people.answered()
        await agent.turns.admit(people.message("again"))
        await people.answered(2)
    assert seen == [[], [{"step": 1}, "two"], []]


async def test_an_adapter_finds_a_result_by_its_own_id_of_the_call() -> None:
    calls: list[str] = []

    async def pay(what: str) -> str:
        calls.append(what)
        if what == "b":
            await die(agent)
        return f"paid {what}"

    async def handler(turn: Turn) -> None:
        said = []
        for what in "ab" if turn.attempt == 1 else "ba":
            try:
                said.append(await turn.call_tool(pay, [what], name="pay", call_id=f"id-{what}"))
            except UnknownOutcome as error:
                said.append(f"unknown {error.name}")
        turn.answer(", ".join(said))

    agent, people = Agent(MemoryStorage(), handler), People()
    async with working(agent.turns, people):
        await agent.turns.admit(people.message("go"))
        assert await people.answered() == ["unknown pay, paid a"]
    assert calls == ["a", "b"]


async def test_an_attempt_that_continues_after_a_question_finds_the_answer_to_the_next_one() -> None:
    storage, people = MemoryStorage(), People()
    await storage.open()

    def made() -> Turns:
        turns = Turns("bot", storage=storage, collect=0.0)

        @turns.handler
        async def answer(turn: Turn) -> None:
            if not turn.kept:
                await turn.keep(bool(await turn.ask("First?")))
            second = await turn.ask("Second?")
            third = await turn.ask("Third?")
            turn.answer(f"{turn.kept[0]} {second} {third}")

        return turns

    async def cards(count: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await until(lambda: list(people.sent), lambda sent: len(sent) == count)
        return found

    turns = made()
    async with working(turns, people):
        await turns.admit(people.message("go"))
        await turns.admit(people.press((await cards(1))[0], "Yes"))
        await cards(2)
        await state_of(turns, "asking")
    again = made()
    async with working(again, people):
        await again.admit(people.press(people.sent[1], "No"))
        await again.admit(people.press((await cards(3))[2], "Yes"))
        assert (await people.answered(4))[3] == "True No Yes"
        await state_of(again, "idle", ANN)
