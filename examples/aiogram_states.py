"""The registration bot with aiogram's own FSM; only the two lines with Stepwell are new.

BOT_TOKEN=... python examples/aiogram_states.py
"""

import asyncio
import os

from aiogram import Bot, Dispatcher, F, Router
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer
from aiogram.filters import Command
from aiogram.fsm.context import FSMContext
from aiogram.fsm.state import State, StatesGroup
from aiogram.types import Message

from stepwell import Storage, open_storage
from stepwell.adapters.aiogram import StepwellIsolation, StepwellStorage


class Registration(StatesGroup):
    get_name = State()
    get_email = State()
    confirm = State()


def make_dispatcher(storage: Storage | str) -> Dispatcher:
    """Return the bot over any storage."""
    if isinstance(storage, str):
        storage = open_storage(storage)
    dispatcher = Dispatcher(storage=StepwellStorage(storage), events_isolation=StepwellIsolation(storage))
    router = Router()
    dispatcher.include_router(router)

    @router.message(Command("register"))
    async def begin(message: Message, state: FSMContext) -> None:
        await state.set_state(Registration.get_name)
        await message.answer("What's your name?")

    @router.message(Command("cancel"))
    async def cancel(message: Message, state: FSMContext) -> None:
        await state.clear()
        await message.answer("Cancelled.")

    @router.message(Registration.get_name, F.text)
    async def get_name(message: Message, state: FSMContext) -> None:
        await state.update_data(name=message.text)
        await state.set_state(Registration.get_email)
        await message.answer(f"Got it, {message.text}! What's your email?")

    @router.message(Registration.get_email, F.text)
    async def get_email(message: Message, state: FSMContext) -> None:
        await state.update_data(email=message.text)
        await state.set_state(Registration.confirm)
        await message.answer("Please confirm.")

    @router.message(Registration.confirm, F.text == "yes")
    async def confirm(message: Message, state: FSMContext) -> None:
        data = await state.get_data()
        await message.answer(f"Registered! Welcome, {data['name']}!")
        await state.clear()

    return dispatcher


async def main() -> None:
    server = TelegramAPIServer.from_base(os.environ.get("BOT_API", "https://api.telegram.org"))
    bot = Bot(os.environ["BOT_TOKEN"], session=AiohttpSession(api=server))
    await make_dispatcher(os.environ.get("STORAGE", "sqlite:///states.db")).start_polling(bot, handle_as_tasks=False)


if __name__ == "__main__":
    asyncio.run(main())
