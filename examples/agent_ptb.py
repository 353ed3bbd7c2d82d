"""An agent in a bot of python-telegram-bot, whose own handlers come first: ``BOT_TOKEN=... python agent_ptb.py``."""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

from telegram import Update
from telegram.ext import Application, ApplicationBuilder, CommandHandler, ContextTypes

from stepwell import Storage
from stepwell.adapters.ptb import confirm_handled
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


async def show_help(update: Update, context: ContextTypes.DEFAULT_TYPE) -> None:
    assert update.message is not None
    await update.message.reply_text("Tell me anything. /stop stops me.")


def make_application(
    storage: Storage | str, builder: ApplicationBuilder[Any, Any, Any, Any, Any, Any]
) -> Application[Any, Any, Any, Any, Any, Any]:
    """Return the bot over any storage."""
    application = builder.build()
    # Telegram keeps a message until it is stored.
    confirm_handled(application)
    application.add_handler(CommandHandler("help", show_help))
    turns = Turns("agent_bot", storage=storage, collect=0.5)
    turns.handler(answer)
    turns.attach(application)
    return application


def main() -> None:
    # BOT_API is the address of another Bot API server, such as the playground's.
    server = os.environ.get("BOT_API", "https://api.telegram.org")
    builder = ApplicationBuilder().token(os.environ["BOT_TOKEN"]).base_url(f"{server}/bot")
    make_application("sqlite:///agent.db", builder).run_polling()


if __name__ == "__main__":
    main()
