"""The agent of ``cookbook/agent.py`` in an aiogram bot: ``BOT_TOKEN=... python examples/agent_aiogram.py``."""

import asyncio
import importlib
import os
import re
from collections.abc import AsyncIterator
from typing import Any

from aiogram import Bot, Dispatcher
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer

from stepwell import Storage
from stepwell.turns import Turn, Turns, UnknownOutcome


async def model(told: list[dict[str, Any]]) -> AsyncIterator[str]:
    """Answer what the model was told, piece by piece."""
    if "OPENAI_API_KEY" in os.environ:
        chat: Any = importlib.import_module("openai").AsyncOpenAI().chat.completions
        async for chunk in await chat.create(model="gpt-5-mini", messages=told, stream=True):
            yield chunk.choices[0].delta.content or ""
    else:
        for piece in re.split("(?<= )", f"Message {len(told)} says: {told[-1]['content']}"):
            await asyncio.sleep(0.05)
            yield piece


async def pay(amount: str) -> str:
    """Pay an amount; a real one calls the bank."""
    return f"Receipt for {amount} EUR"


async def decided_and_paid(turn: Turn) -> str | None:
    """Return what the model has to know of a payment, if the person wants one."""
    if not turn.text.startswith("pay "):
        return None
    if not await turn.ask(f"Really {turn.text} EUR?", timeout="24h"):
        return "The person does not want to pay."
    try:
        return str(await turn.tool(pay, turn.text[4:], replay="never"))
    except UnknownOutcome:
        return "Nobody knows whether it was paid: ask the bank."


def make_dispatcher(storage: Storage | str) -> Dispatcher:
    turns = Turns("agent", storage=storage, collect=1.0, on_busy="steer")

    @turns.handler
    async def answer(turn: Turn) -> None:
        new = [{"role": "user", "content": turn.text}]
        if (result := await decided_and_paid(turn)) is not None:
            new.append({"role": "system", "content": result})
        known = await turn.history.read(last=20)
        async with turn.stream() as out:
            while new[-1]["role"] != "assistant":
                async for piece in model(known + new):
                    out.write(piece)
                # What the person has written meanwhile is answered too.
                steered = [{"role": "user", "content": message.text} for message in await turn.steered()]
                new += steered or [{"role": "assistant", "content": out.text}]
        turn.history.append(*new)

    dispatcher = Dispatcher()
    turns.attach(dispatcher)
    return dispatcher


async def main() -> None:
    # BOT_API is the address of another Bot API server, such as the playground's.
    server = TelegramAPIServer.from_base(os.environ.get("BOT_API", "https://api.telegram.org"))
    bot = Bot(os.environ["BOT_TOKEN"], session=AiohttpSession(api=server))
    # Telegram keeps a message until it is stored.
    await make_dispatcher("sqlite:///agent.db").start_polling(bot, handle_as_tasks=False)


if __name__ == "__main__":
    asyncio.run(main())
