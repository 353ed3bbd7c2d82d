"""The registration bot with the ConversationHandler of python-telegram-bot; only the lines with Stepwell are new.

BOT_TOKEN=... python examples/ptb_registration.py
"""

import os
from typing import Any

from telegram import Update
from telegram.ext import Application, ApplicationBuilder, CommandHandler, ContextTypes, MessageHandler, filters

from stepwell import Storage
from stepwell.adapters.ptb import ConversationHandler, StepwellPersistence, confirm_handled

NAME, EMAIL, CONFIRM = range(3)


async def begin(update: Update, context: ContextTypes.DEFAULT_TYPE) -> int:
    await update.message.reply_text("What's your name?")
    return NAME


async def get_name(update: Update, context: ContextTypes.DEFAULT_TYPE) -> int:
    context.user_data["name"] = update.message.text
    await update.message.reply_text(f"Got it, {update.message.text}! What's your email?")
    return EMAIL


async def get_email(update: Update, context: ContextTypes.DEFAULT_TYPE) -> int:
    context.user_data["email"] = update.message.text
    await update.message.reply_text("Please confirm.")
    return CONFIRM


async def confirm(update: Update, context: ContextTypes.DEFAULT_TYPE) -> int:
    await update.message.reply_text(f"Registered! Welcome, {context.user_data['name']}!")
    return ConversationHandler.END


async def cancel(update: Update, context: ContextTypes.DEFAULT_TYPE) -> int:
    await update.message.reply_text("Cancelled.")
    return ConversationHandler.END


def make_application(
    storage: Storage | str, builder: ApplicationBuilder[Any, Any, Any, Any, Any, Any], **options: Any
) -> Application[Any, Any, Any, Any, Any, Any]:
    """Return the bot over any storage; options are passed to the persistence."""
    application = builder.persistence(StepwellPersistence(storage, **options)).build()
    # Telegram keeps an update until it is handled.
    confirm_handled(application)
    text = filters.TEXT & ~filters.COMMAND
    registration = ConversationHandler(
        entry_points=[CommandHandler("register", begin)],
        states={
            NAME: [MessageHandler(text, get_name)],
            EMAIL: [MessageHandler(text, get_email)],
            CONFIRM: [MessageHandler(filters.Text(["yes"]), confirm)],
        },
        fallbacks=[CommandHandler("cancel", cancel)],
    )
    application.add_handler(registration)
    return application


def main() -> None:
    # BOT_API is the address of another Bot API server, such as the playground's.
    server = os.environ.get("BOT_API", "https://api.telegram.org")
    builder = ApplicationBuilder().token(os.environ["BOT_TOKEN"]).base_url(f"{server}/bot")
    application = make_application(os.environ.get("STORAGE", "sqlite:///registration.db"), builder)
    application.run_polling()


if __name__ == "__main__":
    main()
