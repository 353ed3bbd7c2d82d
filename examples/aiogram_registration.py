"""The registration bot in aiogram, with Stepwell's conversations: kill it at any moment and start it again.

BOT_TOKEN=... python examples/aiogram_registration.py
"""

import asyncio
import os
from typing import Any

from aiogram import Bot, Dispatcher, F, Router
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer
from aiogram.filters import Command
from aiogram.types import Message

from stepwell import Storage
from stepwell.adapters.aiogram import fsm_in_flow, fsm_state, setup
from stepwell.fsm import FSM, Context, Flow, state


class Registration(Flow, name="registration"):
    get_name = state(to=["get_email"])
    get_email = state(to=["confirm"])
    confirm = state(to=[])
    default_state = get_name


def make_dispatcher(storage: Storage | str, **options: Any) -> Dispatcher:
    """Return the bot over any storage; options are passed to the FSM."""
    dispatcher = Dispatcher(disable_fsm=True)
    setup(dispatcher, FSM("registration_bot", storage=storage, flows=[Registration], **options))
    router = Router()
    dispatcher.include_router(router)

    @router.message(Command("register"))
    async def begin(message: Message, ctx: Context) -> None:
        ctx.start_flow(Registration)
        await message.answer("What's your name?")

    @router.message(Command("cancel"), fsm_in_flow())
    async def cancel(message: Message, ctx: Context) -> None:
        ctx.clear_flow()
        await message.answer("Cancelled.")

    @router.message(fsm_state(Registration.get_name), F.text)
    async def get_name(message: Message, ctx: Context) -> None:
        ctx.update_data(name=message.text)
        ctx.transition("get_email")
        await message.answer(f"Got it, {message.text}! What's your email?")

    @router.message(fsm_state(Registration.get_email), F.text)
    async def get_email(message: Message, ctx: Context) -> None:
        ctx.update_data(email=message.text)
        ctx.transition("confirm")
        await message.answer("Please confirm.")

    @router.message(fsm_state(Registration.confirm), F.text == "yes")
    async def confirm(message: Message, ctx: Context) -> None:
        await message.answer(f"Registered! Welcome, {ctx.data['name']}!")
        ctx.clear_flow()

    return dispatcher


async def main() -> None:
    # BOT_API is the address of another Bot API server, such as the playground's.
    server = TelegramAPIServer.from_base(os.environ.get("BOT_API", "https://api.telegram.org"))
    bot = Bot(os.environ["BOT_TOKEN"], session=AiohttpSession(api=server))
    dispatcher = make_dispatcher(os.environ.get("STORAGE", "sqlite:///registration.db"))
    # One after the other, so that Telegram keeps an update until it is handled.
    await dispatcher.start_polling(bot, handle_as_tasks=False)


if __name__ == "__main__":
    asyncio.run(main())
