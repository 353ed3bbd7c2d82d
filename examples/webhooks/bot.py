"""The webhook that all examples serve: the registration bot, with its settings from the environment."""

import os

from examples.registration import make_router
from stepwell.telegram import Webhook, webhook


def make_webhook() -> Webhook:
    """Return the webhook. The token is read from BOT_TOKEN."""
    return webhook(
        make_router(os.environ.get("STEPWELL_STORAGE", "sqlite:///bot.db")),
        secret_token=os.environ["WEBHOOK_SECRET"],
        api=os.environ.get("BOT_API", "https://api.telegram.org"),
    )
