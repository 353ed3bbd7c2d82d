"""What turns may cost: reserved before a turn, counted once with its end, and refused in words when nothing is left."""

from __future__ import annotations

import asyncio
import random
import sys
from asyncio import create_subprocess_exec as spawn
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from stepwell import MemoryStorage, SealedStorage, copy_records, open_storage
from stepwell.errors import InvalidOption, LeaseLost, UnknownOutcome
from stepwell.fsm import FSM
from stepwell.record import BUDGETS
from stepwell.storage.sealed import new_key
from stepwell.testing import Chat
from stepwell.testing.turn_workers import POINTS
from stepwell.turns import Budget, BudgetStatus, Price, Turn, TurnEnded, Turns, Usage, person
from tests.backends import Backend
from tests.turns.people import ANN, People, state_of, working
from tests.turns.test_tools import lose_claim
from tests.until import forever, until


def turns_of(storage: Any, budget: Budget, **options: Any) -> Turns:
    """Return turns whose messages say what they cost."""
    turns = Turns("bot", storage=storage, budget=budget, **{"collect": 0.0, **options})

    @turns.handler
    async def answer(turn: Turn) -> None:
        await turn.spent(float(turn.text))
        turn.answer("done")

    return turns


async def spent(turns: Turns) -> dict[Any, tuple[float, float]]:
    """Return what each payer has spent and reserved, in cents."""
    return {each.payer: (round(each.spent * 100), round(each.reserved * 100)) async for each in turns.budgets()}


@pytest.mark.every_backend
async def test_what_turns_cost_is_counted_and_a_person_is_told_when_nothing_is_left(backend: Backend) -> None:
    turns, people = turns_of(backend.storage(), Budget(usd=1, refusal="No more until {ends}.")), People()
    ended: list[str] = []
    turns.subscribe(lambda event: ended.append(event.how) if isinstance(event, TurnEnded) else None)
    async with working(turns, people):
        for number, cost in enumerate(("0.6", "0.6", "0.1"), 1):
            await turns.admit(people.message(cost))
            await people.answered(number)
        await turns.admit(people.message("0.2", user=43))
        texts = await people.answered(4)
        await state_of(turns, "idle")
        await until(lambda: spent(turns), lambda found: found == {42: (120, 0), 43: (20, 0)})
        said = [entry["content"] for entry in await turns.history(ANN).read() if entry["role"] == "user"]
    assert [texts[0], texts[1], texts[3]] == ["done"] * 3
    assert texts[2].startswith("No more until ") and texts[2].endswith("(UTC).")
    assert ended == ["answered", "answered", "refused", "answered"]
    assert said == ["0.6", "0.6"]


@pytest.mark.every_backend
async def test_what_is_reserved_bounds_the_turns_that_run_at_once_on_all_workers(backend: Backend) -> None:
    url = backend.place()
    stores = [backend.storage(url) for _ in range(2)] if backend.shared else [backend.storage()] * 2
    go, running = asyncio.Event(), 0
    budget = Budget(usd=1, reserve=0.25, by=lambda message: "team", refusal="full")
    workers = [Turns("bot", storage=storage, collect=0.0, budget=budget) for storage in stores]

    async def answer(turn: Turn) -> None:
        nonlocal running
        running += 1
        await go.wait()
        await turn.spent(0.1)
        turn.answer("done")

    people = People()
    for turns in workers:
        turns.handler(answer)
    async with working(workers[0], people), working(workers[1], people):
        await asyncio.gather(*(workers[number % 2].admit(people.message("hi", user=number)) for number in range(1, 13)))
        await until(lambda: people.texts, lambda texts: len(texts) == 8)
        assert set(people.texts) == {"full"}
        assert running == 4 and await spent(workers[0]) == {"team": (0, 100)}
        go.set()
        await people.answered(12)
        assert people.texts.count("done") == 4
        await until(lambda: spent(workers[1]), lambda found: found == {"team": (40, 0)})


@pytest.mark.parametrize("point", POINTS)
async def test_a_turn_that_is_killed_anywhere_is_counted_once(point: str) -> None:
    made: list[Turns] = []

    def make(storage: Any) -> Turns:
        turns = Turns("bot", storage=storage, budget=Budget(usd=2, reserve=0.5))
        made.append(turns)

        @turns.handler
        async def answer(turn: Turn) -> None:
            await turn.spent(0.3, id="request")

            async def tool() -> str:
                await turn.spent(0.05)
                return "used"

            with suppress(UnknownOutcome):
                await turn.tool(tool, replay="never")
            await turn.ask("Sure?")
            turn.answer("done")

        return turns

    async with Chat(make) as chat:
        chat.kill_next(point)
        await chat.send("hi")
        for _ in range(8):
            await chat.advance(31)
            if "Yes" in chat.buttons:
                await chat.press("Yes")
        assert "done" in [message["text"] for message in chat.messages]
        assert await spent(made[-1]) == {42: (35, 0)}


async def test_a_turn_whose_process_is_killed_again_and_again_counts_each_request_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bot.db'}"

    def count(name: str) -> int:
        path = tmp_path / name
        return len(path.read_text()) if path.exists() else 0

    async with open_storage(url) as storage:
        turns = turns_of(storage, Budget(usd=100, reserve=1))
        await turns.admit(People().message("hi"))
        dice, kills = random.Random(), 3
        for _ in range(kills):
            before = count("counted")
            process = await spawn(sys.executable, Path(__file__).with_name("budget_bot.py"), url, str(tmp_path))
            await until(lambda: count("counted") > before + 3)
            await asyncio.sleep(dice.uniform(0, 0.05))
            process.kill()
            await process.wait()
            (_, reserved), *others = (await spent(turns)).values()
            assert not others and reserved == 100, "what was reserved before is reserved once"
        (tmp_path / "go").touch()
        process = await spawn(sys.executable, Path(__file__).with_name("budget_bot.py"), url, str(tmp_path))
        await until((tmp_path / "sent").exists)
        await until(lambda: spent(turns), lambda found: found[42][1] == 0)
        process.terminate()
        await process.wait()
        ((payer, (cents, reserved)),) = (await spent(turns)).items()
        assert (payer, reserved) == (42, 0)
        # A kill may have come between a write and the note of it.
        assert count("counted") <= cents <= count("begun") <= count("counted") + kills


async def test_a_worker_that_stops_and_a_turn_that_fails_and_is_tried_again_lose_no_cost() -> None:
    storage, people = MemoryStorage(), People()
    await storage.open()
    turns = Turns("bot", storage=storage, budget=Budget(usd=5), collect=0.0)
    attempts = 0

    @turns.handler
    async def answer(turn: Turn) -> None:
        nonlocal attempts
        attempts += 1
        await turn.spent(0.2)
        if attempts == 1:
            await forever()
        if attempts == 2:
            raise ValueError("no model")
        turn.answer("done")

    async with working(turns, people):
        await turns.admit(people.message("hi"))
        await until(lambda: attempts)
        await until(lambda: turns.status(ANN), lambda status: status.spent > 0)
    assert await spent(turns) == {42: (0, 50)}
    async with working(turns, people):
        await people.answered()
        await until(lambda: spent(turns), lambda found: found == {42: (40, 0)})
        (failed,) = (await turns.status(ANN)).failed
        await turns.retry(failed.id)
        assert (await people.answered(2))[1] == "done"
        await until(lambda: spent(turns), lambda found: found == {42: (60, 0)})


async def test_a_worker_that_has_lost_its_turn_counts_what_it_has_paid() -> None:
    turns, people = Turns("bot", storage=MemoryStorage(), budget=Budget(usd=5), collect=0.0, lease=0.3), People()
    attempts = 0

    @turns.handler
    async def answer(turn: Turn) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            with pytest.raises(LeaseLost):
                # As after a pause of the process, in which another worker has begun.
                await lose_claim(turns)
                await turn.spent(0.2)
            raise AssertionError("nothing of it is stored")
        await turn.spent(0.3)
        turn.answer("done")

    async with working(turns, people):
        await turns.admit(people.message("hi"))
        assert await people.answered() == ["done"]
        await until(lambda: spent(turns), lambda found: found == {42: (50, 0)})


async def test_a_turn_that_has_used_up_more_than_its_share_and_the_budget_is_stopped_at_its_next_request() -> None:
    budget, people = Budget(usd=1, refusal="Used up."), People()
    turns = Turns("bot", storage=MemoryStorage(), budget=budget, collect=0.0)

    @turns.handler
    async def answer(turn: Turn) -> None:
        async with turn.stream() as out:
            for word in ("one ", "two ", "three ", "four ", "five "):
                await turn.spent(0.4)
                await asyncio.sleep(0)
                out.write(word)

    async with working(turns, people):
        await turns.admit(people.message("hi"))
        assert await people.answered(2) == ["one two three [stopped]", "Used up."]
        await until(lambda: spent(turns), lambda found: found == {42: (160, 0)})
        await turns.admit(people.message("more"))
        assert (await people.answered(3))[2] == "Used up."


async def test_a_period_begins_in_its_time_zone_and_a_turn_counts_in_the_one_in_which_it_ends() -> None:
    now = datetime(2026, 3, 28, 22, 30, tzinfo=UTC).timestamp()
    storage, people = MemoryStorage(clock=lambda: now), People()
    budget = Budget(usd=1, reserve=0.1, tz="Europe/Berlin", refusal="until {ends}")
    turns, working_on = turns_of(storage, budget), asyncio.Event()
    go = asyncio.Event()
    slow = Turns("bot", storage=storage, budget=budget, collect=0.0, name="slow", lease=90_000)

    @slow.handler
    async def answer(turn: Turn) -> None:
        await turn.spent(0.3)
        working_on.set()
        await go.wait()
        turn.answer("slow")

    async with working(turns, people), working(slow, people):
        await turns.admit(people.message("1.5"))
        await people.answered()
        await state_of(turns, "idle")
        await turns.admit(people.message("0.1"))
        assert (await people.answered(2))[1] == "until 29 March, 00:00 (Europe/Berlin)"
        await slow.admit(people.message("hi", user=43))
        await working_on.wait()
        now += 3600
        await turns.admit(people.message("0.2"))
        assert (await people.answered(3))[2] == "done"
        await until(lambda: spent(turns), lambda found: found == {42: (20, 0)})
        # A worker whose clock is behind does not begin the last day again.
        now -= 3600
        await turns.admit(people.message("0.1"))
        assert (await people.answered(4))[3] == "done"
        await until(lambda: spent(turns), lambda found: found == {42: (30, 0), 43: (0, 30)})
        now += 3600
        go.set()
        await people.answered(5)
        await until(lambda: spent(slow), lambda found: found == {42: (30, 0), 43: (30, 0)})


@pytest.mark.parametrize(
    ("per", "tz", "now", "start", "end"),
    [
        ("day", "Europe/Berlin", "2026-03-29T12:00", "2026-03-29T00:00", "2026-03-30T00:00"),
        ("day", "America/New_York", "2026-11-01T00:00", "2026-11-01T00:00", "2026-11-02T00:00"),
        ("month", "Asia/Kolkata", "2026-12-31T23:59", "2026-12-01T00:00", "2027-01-01T00:00"),
        ("hour", "Asia/Kolkata", "2026-12-31T23:59", "2026-12-31T23:00", "2027-01-01T00:00"),
    ],
)
def test_the_periods_of_a_budget(per: Any, tz: str, now: str, start: str, end: str) -> None:
    zone = ZoneInfo(tz)
    at = [datetime.fromisoformat(each).replace(tzinfo=zone).timestamp() for each in (now, start, end)]
    assert list(Budget(usd=1, per=per, tz=tz).period(at[0])) == at[1:]


def test_prices_are_a_table_or_a_function_and_an_unknown_model_costs_as_the_dearest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    prices = {"small": Price(1, 2, cache_read=0.1), "large": Price(10, 20)}
    budget = Budget(usd=1, prices=prices)
    tokens: dict[str, Any] = {"input": 1_000_000, "output": 100_000, "cache_read": 500_000}
    costs = {
        model: budget.cost_of(Usage(model=model, **tokens)) / 1e9 for model in ("small", "small-2026-01-31", "large")
    }
    assert costs == {"small": 0.75, "small-2026-01-31": 0.75, "large": 12.0}
    assert caplog.text == ""
    assert budget.cost_of(Usage(model="small-2", **tokens)) / 1e9 == 12.0
    assert "there is no price of the model 'small-2'" in caplog.text
    assert Budget(usd=1, prices=lambda usage: usage.output / 1e6).cost_of(Usage(model="x", output=500_000)) == 5e8
    with pytest.raises(InvalidOption, match="needs prices"):
        Budget(usd=1).cost_of(Usage(model="small"))
    for wrong in (-1, float("nan"), "1"):
        with pytest.raises(InvalidOption, match="takes dollars of at least 0 or a Usage"):
            budget.cost_of(wrong)  # type: ignore[arg-type]
    for options in (
        {"usd": 0},
        {"usd": "2"},
        {"usd": 1, "reserve": -1},
        {"usd": 1, "per": "week"},
        {"usd": 1, "tz": "x"},
    ):
        with pytest.raises(InvalidOption):
            Budget(**options)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="budget must be a Budget"):
        Turns("bot", storage="memory://", budget=2)  # type: ignore[arg-type]


async def test_who_has_no_payer_has_no_limit_and_a_function_that_raises_fails_the_turn() -> None:
    def payer(message: Any) -> Any:
        return {42: None, 43: 1 / (message.user.id - 43) if message.user.id == 43 else None}.get(person(message) or 0)

    turns, people = turns_of(MemoryStorage(), Budget(usd=1, by=payer)), People()
    async with working(turns, people):
        for number in (1, 2):
            await turns.admit(people.message("5"))
            assert (await people.answered(number))[-1] == "done"
        await turns.admit(people.message("5", user=43))
        assert "something went wrong" in (await people.answered(3))[-1]
        assert len((await turns.status((43, 0))).failed) == 1
        assert await spent(turns) == {}


async def test_a_refusal_may_be_a_function_of_what_is_spent() -> None:
    def told(status: BudgetStatus) -> str:
        return f"{status.payer}: {status.spent:.2f} of {status.limit:.2f}"

    turns, people = turns_of(MemoryStorage(), Budget(usd=1, refusal=told)), People()
    async with working(turns, people):
        await turns.admit(people.message("1.25"))
        await people.answered()
        await state_of(turns, "idle")
        await turns.admit(people.message("1"))
        assert (await people.answered(2))[1] == "42: 1.25 of 1.00"


async def test_budgets_are_copied_encrypted_and_forgotten_with_their_bot(backend: Backend) -> None:
    source, target, people = backend.storage(), backend.storage(), People()
    sealed = SealedStorage(source, keys=[new_key()], names_key=new_key())
    turns = turns_of(sealed, Budget(usd=1))
    async with working(turns, people):
        await turns.admit(people.message("0.25"))
        await people.answered()
        await until(lambda: spent(turns), lambda found: found == {42: (25, 0)})
        assert all("limit" not in str(each) for each in [e async for e in source.scan(BUDGETS)])
    plain, people = turns_of(target, Budget(usd=1)), People()
    async with working(plain, people):
        await plain.admit(people.message("0.5"))
        await people.answered()
        await until(lambda: spent(plain), lambda found: found == {42: (50, 0)})
        other = backend.storage()
        await copy_records(target, other, namespaces=["bot"])
        assert await spent(turns_of(other, Budget(usd=1))) == {42: (50, 0)}
        await FSM("bot", storage=target, flows=[], run_timers=False).forget(user=42)
        assert await spent(plain) == {}
