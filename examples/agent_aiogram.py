"""An agent in an aiogram bot, whose own handlers come first: ``BOT_TOKEN=... python examples/agent_aiogram.py``."""

import asyncio
import os
from collections.abc import AsyncIterator

from aiogram import Bot, Dispatcher
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer
from aiogram.filters import Command
from aiogram.types import Message

from stepwell import Storage
from stepwell.turns import Turn, Turns


async def answer(turn: Turn) -> AsyncIterator[str]:
    if turn.text.startswith("delete "):
        yield "Let me see. "
        if not await turn.ask(f"Really {turn.text}?", timeout="24h"):
            yield "I leave it."
            return
    for word in f"I was told: {turn.text}".split():
        await asyncio.sleep(0.2)  # here you ask your model
        yield f"{word} "


def make_dispatcher(storage: Storage | str) -> Dispatcher:
    """Return the bot over any storage."""
    dispatcher = Dispatcher()

    @dispatcher.message(Command("help"))
    async def show_help(message: Message) -> None:
        await message.answer("Tell me anything. /stop stops me.")

    turns = Turns("agent_bot", storage=storage, collect=0.5)
    turns.handler(answer)
    turns.attach(dispatcher)
    return dispatcher


async def main() -> None:
    # BOT_API is the address of another Bot API server, such as the playground's.
    server = TelegramAPIServer.from_base(os.environ.get("BOT_API", "https://api.telegram.org"))
    bot = Bot(os.environ["BOT_TOKEN"], session=AiohttpSession(api=server))
    await make_dispatcher("sqlite:///agent.db").start_polling(bot)


if __name__ == "__main__":
    asyncio.run(main())
