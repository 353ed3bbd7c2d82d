"""Tools of a turn: stored intents and results, unknown outcomes, and what a stop does to them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from stepwell import MemoryStorage
from stepwell.errors import EncodeError, InvalidOption, KeptError, UnknownOutcome
from stepwell.turns import Turn, Turns, current_turn, tool
from tests.backends import Backend
from tests.turns.people import ANN, People, state_of, working
from tests.until import forever


class Agent:
    """Turns whose handler is another one in each attempt. An attempt is ended like that of a killed process."""

    def __init__(self, storage: Any, *handlers: Callable[[Turn], Any], **options: Any) -> None:
        self.turns = Turns("bot", storage=storage, collect=0.0, lease=0.4, **options)
        self.attempts: list[int] = []
        self.errors: list[BaseException] = []

        @self.turns.handler
        async def answer(turn: Turn) -> None:
            self.attempts.append(turn.attempt)
            await handlers[min(len(self.attempts), len(handlers)) - 1](turn)


async def die(agent: Agent) -> None:
    """Lose the claim, as a process does that is gone."""
    await lose_claim(agent.turns)
    await forever()


async def lose_claim(turns: Turns) -> None:
    """Lose the claim of the turn that runs."""
    runner: Any = turns.runner
    (attempt,) = runner.running.values()
    slot = attempt.record.slot
    # A holder that renews its claim would take it again, because nobody else has.
    turns.storage.renewals.discard(slot)
    await turns.storage.perform(_release(slot))


def _release(slot: Any) -> Any:
    from stepwell.engine import Release

    return Release(slot.address, slot.guard.token)


@pytest.mark.every_backend
async def test_a_result_is_given_again_and_an_interrupted_call_is_unknown(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []

    async def pay(what: str) -> str:
        calls.append(what)
        if what == "second" and calls.count("second") == 1:
            await die(agent)
        return f"paid {what}"

    async def both(turn: Turn) -> None:
        first = await turn.tool(pay, "first")
        try:
            second = await turn.tool(pay, "second")
        except UnknownOutcome as error:
            assert error.name.endswith("pay")
            second = "unknown"
        turn.answer(f"{first}, {second}")

    agent, people = Agent(backend.storage(), both), People()
    async with working(agent.turns, people):
        await agent.turns.admit(people.message("go"))
        assert await people.answered() == ["paid first, unknown"]
    assert calls == ["first", "second"] and agent.attempts == [1, 2]
    (said,) = [each.getMessage() for each in caplog.records if "outcome is unknown" in each.getMessage()]
    assert "pay" in said and "does not run again" in said


async def test_a_safe_tool_runs_again_after_a_crash_in_it() -> None:
    calls: list[str] = []

    def read(what: str) -> str:
        calls.append(what)
        return f"read {what}"

    async def slow_read(what: str) -> str:
        read(what)
        if len(calls) == 1:
            await die(agent)
        return f"read {what}"

    async def handler(turn: Turn) -> None:
        turn.answer(await turn.tool(slow_read, "it", replay="safe"))

    agent, people = Agent(MemoryStorage(), handler), People()
    async with working(agent.turns, people):
        await agent.turns.admit(people.message("go"))
        assert await people.answered() == ["read it"]
    assert calls == ["it", "it"]


async def test_another_call_at_the_same_position_runs_anew_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []

    async def pay(what: str) -> str:
        calls.append(what)
        return what

    async def first(turn: Turn) -> None:
        await turn.tool(pay, "one")
        await die(agent)

    async def second(turn: Turn) -> None:
        turn.answer(await turn.tool(pay, "two"))

    agent, people = Agent(MemoryStorage(), first, second), People()
    with caplog.at_level(logging.WARNING, "stepwell.turns"):
        async with working(agent.turns, people):
            await agent.turns.admit(people.message("go"))
            assert await people.answered() == ["two"]
    assert calls == ["one", "two"] and "runs anew" in caplog.text


async def test_a_call_that_was_interrupted_is_unknown_also_if_the_next_attempt_makes_others_first() -> None:
    calls: list[str] = []

    async def pay(what: str) -> str:
        calls.append(what)
        if what == "b":
            await die(agent)
        return f"paid {what}"

    async def first(turn: Turn) -> None:
        await turn.tool(pay, "a")
        await turn.tool(pay, "b")

    async def second(turn: Turn) -> None:
        said = [await turn.tool(pay, "c")]
        with pytest.raises(UnknownOutcome):
            await turn.tool(pay, "b")
        said.append(await turn.tool(pay, "a"))
        if len(agent.attempts) == 2:
            await die(agent)
        turn.answer(", ".join(said))

    agent, people = Agent(MemoryStorage(), first, second), People()
    async with working(agent.turns, people):
        await agent.turns.admit(people.message("go"))
        assert await people.answered() == ["paid c, paid a"]
        await state_of(agent.turns, "idle")
        assert (await agent.turns.status(ANN)).tools == (), "nothing is left"
    assert calls == ["a", "b", "c"]


async def test_an_error_of_a_tool_is_given_again_with_its_type_and_text() -> None:
    async def fail() -> None:
        raise ValueError("declined")

    async def first(turn: Turn) -> None:
        with pytest.raises(ValueError, match="declined"):
            await turn.tool(fail)
        await die(agent)

    async def second(turn: Turn) -> None:
        with pytest.raises(KeptError, match="ValueError: declined"):
            await turn.tool(fail)
        turn.answer("told")

    agent, people = Agent(MemoryStorage(), first, second), People()
    async with working(agent.turns, people):
        await agent.turns.admit(people.message("go"))
        assert await people.answered() == ["told"]


async def test_a_result_that_cannot_be_stored_is_an_error_and_does_not_run_again() -> None:
    calls: list[int] = []

    async def odd() -> object:
        calls.append(1)
        return object()

    async def first(turn: Turn) -> None:
        with pytest.raises(EncodeError):
            await turn.tool(odd)
        await die(agent)

    async def second(turn: Turn) -> None:
        with pytest.raises(KeptError, match="EncodeError"):
            await turn.tool(odd)
        with pytest.raises(EncodeError):
            await turn.tool(odd, object())
        with pytest.raises(InvalidOption, match="replay"):
            await turn.tool(odd, replay="often")  # type: ignore[arg-type]
        turn.answer("told")

    agent, people = Agent(MemoryStorage(), first, second), People()
    async with working(agent.turns, people):
        await agent.turns.admit(people.message("go"))
        assert await people.answered() == ["told"]
    assert calls == [1]


async def test_a_stop_lets_a_tool_that_runs_once_end_and_cancels_others() -> None:
    ended: list[str] = []
    begun = asyncio.Event()

    async def pay() -> str:
        begun.set()
        await asyncio.sleep(0.3)
        ended.append("paid")
        return "receipt"

    async def read() -> None:
        begun.set()
        await forever()

    for function, replay, expected in ((pay, "never", ["paid"]), (read, "safe", ["paid"])):

        async def handler(turn: Turn, function: Any = function, replay: Any = replay) -> None:
            async with turn.stream() as out:
                out.write("working")
                await turn.tool(function, replay=replay)

        begun.clear()
        agent, people = Agent(MemoryStorage(), handler), People()
        async with working(agent.turns, people):
            await agent.turns.admit(people.message("go"))
            await begun.wait()
            await agent.turns.stop(ANN)
            assert await people.answered() == ["working [stopped]"]
            await state_of(agent.turns, "idle")
            kept = [entry for entry in await agent.turns.history(ANN).read() if entry["role"] == "tool"]
            assert [entry["content"] for entry in kept] == (["receipt"] if replay == "never" else [])
        assert ended == expected


async def test_a_decorated_function_is_a_tool_within_a_turn_and_a_function_elsewhere() -> None:
    calls: list[str] = []

    @tool
    async def pay(what: str) -> str:
        calls.append(what)
        return f"paid {what} in {'a turn' if current_turn() else 'no turn'}"

    @tool(replay="safe")
    def look(what: str) -> str:
        return f"seen {what}"

    async def framework() -> str:
        results: list[str] = await asyncio.gather(pay("a"), look("b"))
        return ", ".join(results)

    async def handler(turn: Turn) -> None:
        said = await framework()
        tools = (await agent.turns.status(ANN)).tools
        assert sorted((each.replay, each.outcome) for each in tools) == [("never", "returned"), ("safe", "returned")]
        if len(agent.attempts) == 1:
            await die(agent)
        turn.answer(said)

    assert await pay("x") == "paid x in no turn" and await look("y") == "seen y" and current_turn() is None
    agent, people = Agent(MemoryStorage(), handler), People()
    async with working(agent.turns, people):
        await agent.turns.admit(people.message("go"))
        assert await people.answered() == ["paid a in a turn, seen b"]
        await state_of(agent.turns, "idle")
    assert calls == ["x", "a"] and pay.__name__ == "pay"
