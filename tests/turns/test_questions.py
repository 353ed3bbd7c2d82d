"""Questions of a turn: stored, answered once by those who may, after a restart too, and without a claim meanwhile."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from stepwell import MemoryStorage
from stepwell.errors import InvalidOption
from stepwell.testing.simulated_store import SimulatedStore
from stepwell.testing.simulation import Simulation
from stepwell.turns import Decided, Turn, Turns, UnknownOutcome
from tests.backends import Backend
from tests.turns.people import ANN, People, state_of, working
from tests.turns.test_tools import die
from tests.until import until


def asking(storage: Any, **ask: Any) -> tuple[Turns, list[int]]:
    turns = Turns("bot", storage=storage, collect=0.0)
    runs: list[int] = []

    @turns.handler
    async def answer(turn: Turn) -> None:
        runs.append(turn.attempt)
        decision = await turn.ask(f"Delete {turn.text}?", **ask)
        turn.answer(f"{'yes' if decision else 'no'}: {decision.choice} by {decision.name or decision.by}")

    return turns, runs


async def card_of(people: People, place: int = 0) -> dict[str, Any]:
    def cards() -> list[dict[str, Any]]:
        return [call for call in people.sent if "reply_markup" in call]

    card: dict[str, Any] = (await until(cards, lambda found: len(found) > place))[place]
    return card


@pytest.mark.every_backend
async def test_the_first_press_of_an_approver_wins_once_and_the_card_says_who(backend: Backend) -> None:
    turns, runs = asking(backend.storage(), approvers=[7, 8])
    people = People()
    async with working(turns, people):
        await turns.admit(people.message("it"))
        card = await card_of(people)
        await state_of(turns, "asking")
        address = turns.address(ANN)
        assert (await turns.storage.beside(address)).holder is None, "no claim is held meanwhile"
        stranger = await turns.admit(people.press(card, "Yes"))
        assert stranger.calls[0]["text"] == "You are not asked to answer this."
        press = people.press(card, "No", user=7)
        taken = await turns.admit(press)
        assert [call["method"] for call in taken.calls] == ["answerCallbackQuery", "editMessageText"]
        assert taken.calls[1]["text"] == "Delete it?\n\nNo (User 7)"
        late = await turns.admit(people.press(card, "Yes", user=8))
        assert late.calls[0].get("text") in ("This was answered already.", "This question is closed.")
        assert (await people.answered(2))[1] == "no: No by User 7"
        await state_of(turns, "idle")
        after = await turns.admit(people.press(card, "Yes", user=8))
        assert after.calls[0]["text"] == "This question is closed."
    assert runs == [1], "it goes on in place"


@pytest.mark.every_backend
async def test_a_question_survives_a_restart_and_is_not_asked_again(backend: Backend) -> None:
    url = backend.place()
    storage = backend.storage(url)
    await storage.open()
    people = People()
    turns, runs = asking(storage)
    async with working(turns, people):
        await turns.admit(people.message("it"))
        card = await card_of(people)
        await state_of(turns, "asking")
    again, runs_again = asking(storage if not backend.shared else backend.storage(url))
    assert (await again.status(ANN)).questions[0].text == "Delete it?"
    # The button of the old process works while no worker runs.
    assert (await again.admit(people.press(card, "Yes"))).outcome == "answer"
    async with working(again, people):
        assert (await people.answered(2))[1] == "yes: Yes by User 42"
    assert (runs, runs_again) == ([1], [1]), "waiting for people counts no attempt"
    assert len([call for call in people.sent if "reply_markup" in call]) == 1


async def test_a_redelivered_press_makes_the_same_calls_again_while_its_turn_runs() -> None:
    turns, people = Turns("bot", storage=MemoryStorage(), collect=0.0), People()
    go_on = asyncio.Event()

    @turns.handler
    async def answer(turn: Turn) -> None:
        turn.answer(str(await turn.ask("Which?", options=("Small", "Large"))))
        await go_on.wait()

    async with working(turns, people):
        await turns.admit(people.message("it"))
        press = people.press(await card_of(people), "Large")
        first = await turns.admit(press)
        assert [call["method"] for call in first.calls] == ["answerCallbackQuery", "editMessageText"]
        assert (await turns.admit(press)).calls == first.calls
        go_on.set()
        assert (await people.answered(2))[1] == "Large"


async def test_a_question_ends_by_its_timeout_and_then_takes_no_answer() -> None:
    turns, _ = asking(MemoryStorage(), timeout=0.2)
    people = People()
    async with working(turns, people):
        await turns.admit(people.message("it"))
        card = await card_of(people)
        assert (await people.answered(2))[1] == "no: None by None"
        assert (await turns.admit(people.press(card, "Yes"))).calls[0]["text"] == "This question is closed."


async def test_a_question_is_answered_by_a_message_which_becomes_no_turn() -> None:
    turns, runs = asking(MemoryStorage(), reply=True, approvers=[42])
    people = People()
    async with working(turns, people):
        await turns.admit(people.message("it"))
        await state_of(turns, "asking")
        other = await turns.admit(people.message("not me", user=7, chat=42))
        assert other.outcome == "taken"
        reply = people.message("only the old ones")
        assert (await turns.admit(reply)).outcome == "answer"
        assert (await people.answered(2))[1] == "yes: only the old ones by User 42"
        await until(lambda: len(runs) == 2)
        assert (await turns.admit(reply)).outcome == "known"


async def test_any_program_can_decide_and_is_told_what_became_of_it() -> None:
    turns, _ = asking(MemoryStorage(), approvers=[42])
    people = People()
    assert await turns.decide(ANN, "Yes", by=42) is Decided.TOO_LATE
    async with working(turns, people):
        await turns.admit(people.message("it"))
        await state_of(turns, "asking")
        assert await turns.decide(ANN, "Yes", by=7) is Decided.NOT_ALLOWED
        with pytest.raises(InvalidOption, match="no option of this question"):
            await turns.decide(ANN, "Perhaps", by=42)
        assert await turns.decide(ANN, "Yes", by=42, name="the console")
        assert (await people.answered(2))[1] == "yes: Yes by the console"


async def test_two_questions_can_be_open_at_once_and_the_handler_goes_on_with_each() -> None:
    turns, people = Turns("bot", storage=MemoryStorage(), collect=0.0), People()
    said: list[str] = []

    @turns.handler
    async def answer(turn: Turn) -> None:
        async def one(what: str) -> None:
            decision = await turn.ask(what)
            await asyncio.sleep(0.2)
            said.append(await turn.tool(tell, f"{what} {decision}"))

        async def tell(text: str) -> str:
            return text

        await asyncio.gather(one("A?"), one("B?"))
        turn.answer("done")

    async with working(turns, people):
        await turns.admit(people.message("it"))
        second = await card_of(people, 1)
        await state_of(turns, "asking")
        with pytest.raises(InvalidOption, match="several questions"):
            await turns.decide(ANN, "Yes")
        await turns.admit(people.press(second, "No"))
        await until(lambda: said)
        await state_of(turns, "asking")
        await turns.decide(ANN, "Yes")
        await people.answered(3)
    assert said == ["B? No", "A? Yes"]


async def test_a_later_attempt_that_asks_about_something_else_asks_anew() -> None:
    storage, people = MemoryStorage(), People()
    await storage.open()
    about: list[str] = ["a.txt"]
    turns = Turns("bot", storage=storage, collect=0.0)

    @turns.handler
    async def answer(turn: Turn) -> None:
        turn.answer(str(await turn.ask("Delete?", about=about[0])))

    async with working(turns, people):
        await turns.admit(people.message("it"))
        card = await card_of(people)
        await state_of(turns, "asking")
    await turns.admit(people.press(card, "Yes"))
    about[0] = "b.txt"
    async with working(turns, people):
        await turns.admit(people.press(await card_of(people, 1), "No"))
        assert (await people.answered(3))[2] == "No"


async def test_a_stop_ends_a_turn_that_asks() -> None:
    turns, _ = asking(MemoryStorage())
    people = People()
    async with working(turns, people):
        await turns.admit(people.message("it"))
        await state_of(turns, "asking")
        assert await turns.stop(ANN)
        assert (await people.answered(2))[1] == "Stopped."
        await state_of(turns, "idle")


async def test_an_answer_that_arrives_before_the_claim_is_released_lets_the_handler_go_on_with_it() -> None:
    turns, people = Turns("bot", storage=MemoryStorage(), collect=0.0), People()
    runs: list[int] = []

    async def pay() -> str:
        await asyncio.sleep(0.1)
        return "paid"

    @turns.handler
    async def answer(turn: Turn) -> None:
        runs.append(turn.attempt)
        decision = await turn.ask("Pay?")
        await asyncio.sleep(0.1)
        turn.answer(f"{decision}: {await turn.tool(pay)}")

    async def send(call: dict[str, Any]) -> None:
        await people.send(call)
        if "reply_markup" in call:
            assert await turns.decide(ANN, "Yes")

    async with turns.worker(send=send, drain=0):
        await turns.admit(people.message("it"))
        assert (await people.answered(2))[1] == "Yes: paid"
    assert runs == [1]


def test_a_heartbeat_that_meets_a_question_does_not_claim_the_conversation_again() -> None:
    """The heartbeat of a turn and the write that releases the claim for a question may be under way together."""

    async def main(simulation: Simulation) -> str | None:
        async with SimulatedStore(simulation).storage() as storage:
            turns, people = Turns("bot", storage=storage, collect=0.0, lease=1.5), People()

            @turns.handler
            async def answer(turn: Turn) -> None:
                # The heartbeat is due when the record is looked at for the first time.
                await asyncio.sleep(0.995 + 0.01 * simulation.random.random())
                await turn.ask("Really?")

            async with working(turns, people):
                await turns.admit(people.message("it"))
                await card_of(people)
                await asyncio.sleep(10)
                return (await storage.beside(turns.address(ANN))).holder

    for seed in range(60):
        simulation = Simulation(seed, allow=["clock"])
        assert simulation.run(main(simulation)) is None, "nobody holds the claim while the turn waits for people"


def test_a_press_that_comes_before_the_claim_is_released_does_not_keep_it_for_the_next_question() -> None:
    async def main(simulation: Simulation) -> str | None:
        async with SimulatedStore(simulation).storage() as storage:
            turns = Turns("bot", storage=storage, collect=0.0)

            @turns.handler
            async def answer(turn: Turn) -> None:
                await turn.ask("First?")
                await asyncio.sleep(simulation.random.choice([0.0, 0.1, 1.0]))
                await turn.ask("Second?")

            async def send(call: dict[str, Any]) -> None:
                if call.get("text") == "First?":
                    # The answer is stored before the card is removed from what is to be sent.
                    assert await turns.decide(ANN, "Yes")

            async with turns.worker(send=send, drain=0):
                await turns.admit(People().message("it"))
                await asyncio.sleep(10)
                assert len((await turns.status(ANN)).questions) == 2
                return (await storage.beside(turns.address(ANN))).holder

    for seed in range(60):
        simulation = Simulation(seed, allow=["clock"])
        assert simulation.run(main(simulation)) is None, "nobody holds the claim while the turn waits for people"


async def test_wrong_questions_are_refused() -> None:
    turns, people = Turns("bot", storage=MemoryStorage(), collect=0.0), People()

    @turns.handler
    async def answer(turn: Turn) -> None:
        for wrong in ({"options": ()}, {"options": "Yes"}, {"options": ("A", "A")}, {"timeout": "soon"}):
            with pytest.raises(InvalidOption):
                await turn.ask("?", **wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidOption):
            await turn.ask("")
        turn.answer("all refused")

    async with working(turns, people):
        await turns.admit(people.message("it"))
        assert await people.answered() == ["all refused"]


async def test_a_claim_that_is_lost_after_an_answer_is_noticed_as_early_as_before_it() -> None:
    people, turns = People(), Turns("bot", storage=MemoryStorage(), collect=0.0, lease=0.4)

    async def pay() -> None:
        await die(SimpleNamespace(turns=turns))  # type: ignore[arg-type]

    @turns.handler
    async def answer(turn: Turn) -> None:
        await turn.ask("Pay?")
        try:
            await turn.tool(pay)
        except UnknownOutcome:
            turn.answer("I do not know.")

    async with working(turns, people):
        await turns.admit(people.message("go"))
        (card,) = await until(lambda: list(people.sent), lambda sent: len(sent) == 1)
        await state_of(turns, "asking")
        await turns.admit(people.press(card, "Yes"))
        assert await people.answered(2) == ["Pay?", "I do not know."]
