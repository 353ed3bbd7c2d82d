"""The registration bot in telebot, with Stepwell's conversations: kill it at any moment and start it again.

BOT_TOKEN=... python examples/telebot_registration.py
"""

import os
from typing import Any

from telebot import TeleBot, apihelper
from telebot.types import Message

from stepwell import Storage
from stepwell.adapters.telebot import fsm_of, setup
from stepwell.fsm import FSM, Flow, state


class Registration(Flow, name="registration"):
    get_name = state(to=["get_email"])
    get_email = state(to=["confirm"])
    confirm = state(to=[])
    default_state = get_name


def make_bot(token: str, storage: Storage | str, **options: Any) -> TeleBot:
    """Return the bot over any storage; options are passed to the FSM."""
    # Without threads, Telegram keeps an update until it is handled.
    bot = TeleBot(token, threaded=False)
    setup(bot, FSM("registration_bot", storage=storage, flows=[Registration], **options))

    def begin(message: Message) -> None:
        ctx = fsm_of(message)
        ctx.start_flow(Registration)
        ctx.answer("What's your name?")

    def cancel(message: Message) -> None:
        ctx = fsm_of(message)
        ctx.clear_flow()
        ctx.answer("Cancelled.")

    def get_name(message: Message) -> None:
        ctx = fsm_of(message)
        ctx.update_data(name=message.text)
        ctx.transition("get_email")
        ctx.answer(f"Got it, {message.text}! What's your email?")

    def get_email(message: Message) -> None:
        ctx = fsm_of(message)
        ctx.update_data(email=message.text)
        ctx.transition("confirm")
        ctx.answer("Please confirm.")

    def confirm(message: Message) -> None:
        ctx = fsm_of(message)
        ctx.answer(f"Registered! Welcome, {ctx.data['name']}!")
        ctx.clear_flow()

    bot.register_message_handler(begin, commands=["register"])
    bot.register_message_handler(cancel, commands=["cancel"], fsm_in_flow=True)
    bot.register_message_handler(get_name, fsm_state=Registration.get_name)
    bot.register_message_handler(get_email, fsm_state=Registration.get_email)
    bot.register_message_handler(confirm, fsm_state=Registration.confirm, regexp="^yes$")
    return bot


if __name__ == "__main__":
    # BOT_API is the address of another Bot API server, such as the playground's.
    apihelper.API_URL = os.environ.get("BOT_API", "https://api.telegram.org") + "/bot{0}/{1}"  # type: ignore[assignment]
    make_bot(os.environ["BOT_TOKEN"], os.environ.get("STORAGE", "sqlite:///registration.db")).infinity_polling()
