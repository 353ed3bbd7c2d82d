"""The registration wizard in aiogram, with Stepwell's conversations: kill it at any moment and start it again.

BOT_TOKEN=... python examples/aiogram_wizard.py
"""

import asyncio
import os
from typing import Any

from aiogram import Bot, Dispatcher, F, Router
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer
from aiogram.filters import Command
from aiogram.types import CallbackQuery, Message

from stepwell import Storage
from stepwell.adapters.aiogram import fsm_in_flow, fsm_state, setup
from stepwell.fsm import FSM, Context, Flow, keyboard, state


async def ask(ctx: Context, state: str | None) -> None:
    if state == "confirm":
        ctx.answer("{name}, {email}: is that right?".format(**ctx.data), reply_markup=keyboard([["Confirm", "Cancel"]]))
    else:
        ctx.answer("What's your name?" if state == "get_name" else "What's your email?")


async def remind(ctx: Context) -> None:
    ctx.answer("Are you still there? Please answer the question, or /cancel.")


class Wizard(Flow, name="wizard"):
    get_name = state(to=["get_email"], timeout=600, idle=True, on_timeout=remind)
    get_email = state(to=["confirm"], timeout=600, idle=True, on_timeout=remind)
    confirm = state(to=[], timeout=600, idle=True, on_timeout=remind)
    default_state = get_name
    on_enter = staticmethod(ask)


def make_dispatcher(storage: Storage | str, **options: Any) -> Dispatcher:
    """Return the bot over any storage; options are passed to the FSM."""
    dispatcher = Dispatcher(disable_fsm=True)
    setup(dispatcher, FSM("wizard_bot", storage=storage, flows=[Wizard], **options))
    router = Router()
    dispatcher.include_router(router)

    @router.message(Command("register"))
    async def begin(message: Message, ctx: Context) -> None:
        ctx.start_flow(Wizard)

    @router.message(Command("back"), fsm_state(Wizard.get_email) | fsm_state(Wizard.confirm))
    async def back(message: Message, ctx: Context) -> None:
        ctx.back()

    @router.message(Command("cancel"), fsm_in_flow())
    async def cancel(message: Message, ctx: Context) -> None:
        ctx.answer("Cancelled.")
        ctx.clear_flow()

    @router.message(fsm_state(Wizard.get_name), F.text)
    async def get_name(message: Message, ctx: Context) -> None:
        ctx.update_data(name=message.text)
        ctx.transition("get_email")

    @router.message(fsm_state(Wizard.get_email), F.text)
    async def get_email(message: Message, ctx: Context) -> None:
        if "@" in (message.text or ""):
            ctx.update_data(email=message.text)
            ctx.transition("confirm")
        else:
            ctx.answer("Please send an email address, such as alice@example.com.")

    @router.callback_query(fsm_state(Wizard.confirm))
    async def end(query: CallbackQuery, ctx: Context) -> None:
        ctx.answer(f"Registered! Welcome, {ctx.data['name']}!" if query.data == "Confirm" else "Cancelled.")
        ctx.clear_flow()
        ctx.answer_callback()

    return dispatcher


async def main() -> None:
    # BOT_API is the address of another Bot API server, such as the playground's.
    server = TelegramAPIServer.from_base(os.environ.get("BOT_API", "https://api.telegram.org"))
    bot = Bot(os.environ["BOT_TOKEN"], session=AiohttpSession(api=server))
    dispatcher = make_dispatcher(os.environ.get("STORAGE", "sqlite:///wizard.db"))
    # One after the other, so that Telegram keeps an update until it is handled.
    await dispatcher.start_polling(bot, handle_as_tasks=False)


if __name__ == "__main__":
    asyncio.run(main())
