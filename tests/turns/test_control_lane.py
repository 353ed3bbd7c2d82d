"""Presses and stops act when their update arrives, whatever the other updates of the chat wait for."""

from __future__ import annotations

import asyncio
from time import perf_counter

from stepwell import MemoryStorage
from stepwell.botapi import BotAPI, Person
from stepwell.fsm import FSM, Context, Router, command
from stepwell.telegram import run_polling
from stepwell.turns import Turn, Turns
from tests.until import until


async def acknowledged(person: Person, button: str, *, on: str | None = None) -> str:
    """Press a button, wait until the bot has acknowledged it, and return the id of the query."""

    def ids() -> list[str]:
        return [call["callback_query_id"] for call in person.bot.calls if call["method"] == "answerCallbackQuery"]

    began = perf_counter()
    query = await person.press(button, on=on)
    assert query is not None
    await until(lambda: query in ids())
    print(f"{button!r} was acknowledged after {1000 * (perf_counter() - began):.0f} ms, while a turn runs")
    return query


async def test_presses_and_stops_do_not_wait_for_the_handlers_of_their_chat() -> None:
    storage, slow, working = MemoryStorage(), asyncio.Event(), asyncio.Event()
    turns = Turns("my_bot", storage=storage, collect=0.0)
    router = Router(FSM("my_bot", storage=storage, flows=[]))

    @router.on(command("slow"))
    async def answer_slowly(ctx: Context) -> None:
        await slow.wait()
        ctx.answer("slow")

    @router.on(command("menu"))
    async def show_menu(ctx: Context) -> None:
        keyboard = {"inline_keyboard": [[{"text": "Old", "callback_data": "of an earlier release"}]]}
        ctx.answer("Menu", reply_markup=keyboard)

    @turns.handler
    async def answer(turn: Turn) -> None:
        async with turn.stream() as out:
            if await turn.ask("Sure?"):
                out.write("Deleting")
                working.set()
                await asyncio.Event().wait()

    turns.attach(router)
    async with BotAPI() as api:
        bot = api.bot("my_bot")
        ann = api.chat(bot, 42)
        polling = asyncio.create_task(run_polling(router, bot.token, api=api.url, limits=None))
        await ann.ask("/menu")
        await ann.ask("delete it")
        await ann.send("/slow")
        await ann.send("more")
        # Its update waits for that of /slow, and is acknowledged all the same.
        old = await acknowledged(ann, "Old", on="Menu")
        query = await acknowledged(ann, "Yes")
        assert not slow.is_set()
        await asyncio.wait_for(working.wait(), 60)
        answers = [call for call in bot.calls if call["method"] == "answerCallbackQuery"]
        assert [call["callback_query_id"] for call in answers] == [old, query]
        await ann.send("/stop")
        await until(lambda: "Deleting [stopped]" in [message["text"] for message in ann.messages])
        assert not slow.is_set()
        slow.set()
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
