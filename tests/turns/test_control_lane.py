"""Presses and stops act when their update arrives, whatever the other updates of the chat wait for."""

from __future__ import annotations

import asyncio

from stepwell import MemoryStorage
from stepwell.botapi import BotAPI
from stepwell.fsm import FSM, Context, Router, command
from stepwell.telegram import run_polling
from stepwell.turns import Turn, Turns
from tests.until import until


async def test_presses_and_stops_do_not_wait_for_the_handlers_of_their_chat() -> None:
    storage, slow, working = MemoryStorage(), asyncio.Event(), asyncio.Event()
    turns = Turns("my_bot", storage=storage, collect=0.0)
    router = Router(FSM("my_bot", storage=storage, flows=[]))

    @router.on(command("slow"))
    async def answer_slowly(ctx: Context) -> None:
        await slow.wait()
        ctx.answer("slow")

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
        await ann.ask("delete it")
        await ann.send("/slow")
        await ann.send("more")
        query = await ann.press("Yes")
        assert query is not None
        await asyncio.wait_for(working.wait(), 60)
        answers = [call for call in bot.calls if call["method"] == "answerCallbackQuery"]
        assert [call["callback_query_id"] for call in answers] == [query]
        await ann.send("/stop")
        await until(lambda: "Deleting [stopped]" in [message["text"] for message in ann.messages])
        assert not slow.is_set()
        slow.set()
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
