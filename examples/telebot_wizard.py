"""The registration wizard in an AsyncTeleBot, with Stepwell's conversations: kill it at any moment, start it again.

BOT_TOKEN=... python examples/telebot_wizard.py
"""

import asyncio
import os
from typing import Any

from telebot import asyncio_helper
from telebot.async_telebot import AsyncTeleBot
from telebot.types import CallbackQuery, Message

from stepwell import Storage
from stepwell.adapters.telebot import confirm_handled, fsm_of, setup
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


async def begin(message: Message) -> None:
    fsm_of(message).start_flow(Wizard)


async def back(message: Message) -> None:
    fsm_of(message).back()


async def get_name(message: Message) -> None:
    ctx = fsm_of(message)
    ctx.update_data(name=message.text)
    ctx.transition("get_email")


async def get_email(message: Message) -> None:
    ctx = fsm_of(message)
    if "@" in (message.text or ""):
        ctx.update_data(email=message.text)
        ctx.transition("confirm")
    else:
        ctx.answer("Please send an email address, such as alice@example.com.")


async def cancel(message: Message) -> None:
    ctx = fsm_of(message)
    ctx.answer("Cancelled.")
    ctx.clear_flow()


async def end(query: CallbackQuery) -> None:
    ctx = fsm_of(query)
    ctx.answer(f"Registered! Welcome, {ctx.data['name']}!" if query.data == "Confirm" else "Cancelled.")
    ctx.clear_flow()
    ctx.answer_callback()


def make_bot(token: str, storage: Storage | str, **options: Any) -> AsyncTeleBot:
    """Return the bot over any storage; options are passed to the FSM."""
    bot = AsyncTeleBot(token)
    setup(bot, FSM("wizard_bot", storage=storage, flows=[Wizard], **options))
    # Telegram keeps an update until it is handled.
    confirm_handled(bot)
    bot.register_message_handler(begin, commands=["register"])
    bot.register_message_handler(back, commands=["back"], fsm_state=[Wizard.get_email, Wizard.confirm])
    bot.register_message_handler(cancel, commands=["cancel"], fsm_in_flow=True)
    bot.register_message_handler(get_name, fsm_state=Wizard.get_name, regexp="^[^/]")
    bot.register_message_handler(get_email, fsm_state=Wizard.get_email, regexp="^[^/]")
    bot.register_callback_query_handler(end, func=lambda query: True, fsm_state=Wizard.confirm)
    return bot


if __name__ == "__main__":
    # BOT_API is the address of another Bot API server, such as the playground's.
    asyncio_helper.API_URL = os.environ.get("BOT_API", "https://api.telegram.org") + "/bot{0}/{1}"
    asyncio.run(make_bot(os.environ["BOT_TOKEN"], os.environ.get("STORAGE", "sqlite:///wizard.db")).infinity_polling())
