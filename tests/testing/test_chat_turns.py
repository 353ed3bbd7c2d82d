"""``Chat`` with turns: virtual time, people who type while a turn runs, stops, presses, and kills at points."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from stepwell import MemoryStorage
from stepwell.errors import InvalidOption, UnknownOutcome, UsageError
from stepwell.fsm import FSM, Context, Router, command
from stepwell.testing import Chat, Clock
from stepwell.testing.turn_workers import POINTS
from stepwell.turns import Turn, Turns


def echo(storage: Any, **options: Any) -> Turns:
    turns = Turns("bot", storage=storage, **options)

    @turns.handler
    async def answer(turn: Turn) -> None:
        turn.answer(f"[{turn.text}]")

    return turns


async def test_a_message_is_answered_when_its_window_is_shut() -> None:
    async with Chat(echo) as chat:
        assert await chat.ask("hi") == ["[hi]"]
        assert await chat.send("one") == []
        assert await chat.advance(0.5) == []
        assert await chat.send("two") == []
        assert await chat.advance(0.9) == []
        assert await chat.advance(0.2) == ["[one\ntwo]"]
        assert await chat.redeliver() == []
        assert await chat.advance(10) == []
        assert await chat.user(7).ask("three") == ["[three]"]


async def test_turns_and_a_router_with_turns_are_chatted_with_as_they_are() -> None:
    async with Chat(echo(MemoryStorage(clock=Clock()))) as chat:
        assert await chat.ask("hi") == ["[hi]"]

    def make(storage: Any) -> Router:
        router = Router(FSM("bot", storage=storage, flows=[]))

        @router.on(command("help"))
        async def show(ctx: Context) -> None:
            ctx.answer("Help!")

        echo(storage).attach(router)
        return router

    async with Chat(make) as chat:
        assert await chat.send("/help") == ["Help!"]
        assert await chat.ask("hi") == ["[hi]"]


async def test_a_person_types_and_stops_while_a_turn_runs() -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    def make(storage: Any) -> Turns:
        turns = Turns("bot", storage=storage, on_waiting=lambda admission: f"queued ({admission.waiting})")

        @turns.handler
        async def answer(turn: Turn) -> None:
            begun.set()
            async with turn.stream() as out:
                out.write(f"about {turn.text}")
                await release.wait()

        return turns

    async with Chat(make) as chat:
        await chat.send("one")
        assert await chat.advance(1, until=begun) == []
        assert await chat.send("two") == ["queued (1)"]
        begun.clear()
        await chat.send("/stop")
        # The stopped turn ends, and the next one begins with what has waited.
        assert (await chat.advance(1, until=begun))[:1] == ["about one [stopped]"]
        release.set()
        assert (await chat.advance(0))[-1:] == ["about two"]


async def test_the_draft_of_a_turn_has_a_button_to_stop_it() -> None:
    shown = asyncio.Event()

    def make(storage: Any) -> Turns:
        turns = Turns("bot", storage=storage)

        @turns.handler
        async def answer(turn: Turn) -> None:
            async with turn.stream() as out:
                out.write("Once upon")
                while not any(call["method"] == "sendMessageDraft" and call["text"] for call in chat.calls):
                    await asyncio.sleep(0.001)
                shown.set()
                await asyncio.Event().wait()

        return turns

    async with Chat(make) as chat:
        with pytest.raises(AssertionError, match="has shown no draft here"):
            await chat.stop()
        await chat.send("tell")
        assert await chat.advance(1, until=shown) == []
        assert await chat.stop() == []
        assert await chat.advance(0) == ["Once upon [stopped]"]
        # The turn has ended, so a second press does nothing.
        assert await chat.stop() == []


async def test_a_button_answers_a_question_after_a_restart() -> None:
    def make(storage: Any) -> Turns:
        turns = Turns("bot", storage=storage)

        @turns.handler
        async def answer(turn: Turn) -> None:
            turn.answer("Done." if await turn.ask("Really?", approvers=[42], timeout="24h") else "Left.")

        return turns

    async with Chat(make) as chat:
        assert await chat.ask("delete") == ["Really?"]
        assert chat.buttons == ["Yes", "No"]
        await chat.restart()
        await chat.press("Yes")
        assert await chat.advance(0) == ["Done."]
        assert await chat.ask("delete") == ["Really?"]
        assert await chat.advance(86_400) == ["Left."]


def payer(paid: list[str]) -> Callable[[Any], Turns]:
    async def pay(text: str) -> str:
        paid.append(text)
        return "receipt"

    def make(storage: Any) -> Turns:
        turns = Turns("bot", storage=storage)

        @turns.handler
        async def answer(turn: Turn) -> None:
            if "ask" in turn.text and not await turn.ask("Really?"):
                return
            try:
                turn.answer(await turn.tool(pay, turn.text))
            except UnknownOutcome:
                turn.answer("unknown")

        return turns

    return make


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("point", [point for point in POINTS if point != "asking"])
async def test_a_killed_turn_goes_on_after_its_lease(point: str, workers: int) -> None:
    paid: list[str] = []
    async with Chat(payer(paid), workers=workers) as chat:
        chat.kill_next(point)
        answers = await chat.ask("pay")
        answers += await chat.advance(31)
        assert paid == ["pay"]
        # Telegram has the answer before the bot is killed behind the send, so it gets it again.
        wanted = {"in tool": ["unknown"], "behind send": ["receipt", "receipt"]}
        assert answers == wanted.get(point, ["receipt"])
        assert await chat.ask("next") == ["receipt"]


async def test_a_bot_that_is_killed_while_it_asks_gets_the_answer() -> None:
    paid: list[str] = []
    async with Chat(payer(paid)) as chat:
        chat.kill_next("asking")
        assert await chat.ask("ask and pay") == ["Really?"]
        await chat.press("Yes")
        assert (await chat.advance(0), paid) == (["receipt"], ["ask and pay"])


async def test_wrong_points_are_refused() -> None:
    async with Chat(echo) as chat:
        with pytest.raises(InvalidOption, match="'before lunch' is no point of a turn; choose one of start, "):
            chat.kill_next("before lunch")
    async with Chat(echo(MemoryStorage())) as chat:
        with pytest.raises(UsageError, match="needs a function"):
            chat.kill_next("start")
    async with Chat(lambda storage: Router(FSM("bot", storage=storage, flows=[]))) as chat:
        with pytest.raises(UsageError, match="is for bots with turns; this one has none"):
            chat.kill_next("start")
