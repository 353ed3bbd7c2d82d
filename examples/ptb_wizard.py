"""The registration wizard in python-telegram-bot, with Stepwell's conversations: kill it at any moment, start it again.

BOT_TOKEN=... python examples/ptb_wizard.py
"""

import os
from typing import Any

from telegram import Update
from telegram.ext import (
    Application,
    ApplicationBuilder,
    CallbackQueryHandler,
    CommandHandler,
    ContextTypes,
    MessageHandler,
    filters,
)

from stepwell import Storage
from stepwell.adapters.ptb import confirm_handled, fsm_in_flow, fsm_of, fsm_state, setup
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


async def begin(update: Update, context: ContextTypes.DEFAULT_TYPE) -> None:
    fsm_of(context).start_flow(Wizard)


async def back(update: Update, context: ContextTypes.DEFAULT_TYPE) -> None:
    fsm_of(context).back()


async def get_name(update: Update, context: ContextTypes.DEFAULT_TYPE) -> None:
    ctx = fsm_of(context)
    ctx.update_data(name=ctx.text)
    ctx.transition("get_email")


async def get_email(update: Update, context: ContextTypes.DEFAULT_TYPE) -> None:
    ctx = fsm_of(context)
    if "@" in (ctx.text or ""):
        ctx.update_data(email=ctx.text)
        ctx.transition("confirm")
    else:
        ctx.answer("Please send an email address, such as alice@example.com.")


async def end(update: Update, context: ContextTypes.DEFAULT_TYPE) -> None:
    ctx = fsm_of(context)
    confirmed = ctx.update.callback_data == "Confirm"
    ctx.answer(f"Registered! Welcome, {ctx.data['name']}!" if confirmed else "Cancelled.")
    ctx.clear_flow()
    if ctx.update.callback_id:
        ctx.answer_callback()


def make_application(
    storage: Storage | str, builder: ApplicationBuilder[Any, Any, Any, Any, Any, Any], **options: Any
) -> Application[Any, Any, Any, Any, Any, Any]:
    """Return the bot over any storage; options are passed to the FSM."""
    application = builder.build()
    setup(application, FSM("wizard_bot", storage=storage, flows=[Wizard], **options))
    # Telegram keeps an update until it is handled.
    confirm_handled(application)
    text = filters.TEXT & ~filters.COMMAND
    application.add_handlers(
        [
            CommandHandler("register", begin),
            CommandHandler("back", back, fsm_state(Wizard.get_email) | fsm_state(Wizard.confirm)),
            CommandHandler("cancel", end, fsm_in_flow()),
            CallbackQueryHandler(end, pattern=fsm_state(Wizard.confirm)),
            MessageHandler(fsm_state(Wizard.get_name) & text, get_name),
            MessageHandler(fsm_state(Wizard.get_email) & text, get_email),
        ]
    )
    return application


def main() -> None:
    # BOT_API is the address of another Bot API server, such as the playground's.
    server = os.environ.get("BOT_API", "https://api.telegram.org")
    builder = ApplicationBuilder().token(os.environ["BOT_TOKEN"]).base_url(f"{server}/bot")
    make_application(os.environ.get("STORAGE", "sqlite:///wizard.db"), builder).run_polling()


if __name__ == "__main__":
    main()
