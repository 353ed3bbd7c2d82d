"""The registration bot behind a webhook, with Starlette.

BOT_TOKEN=... WEBHOOK_SECRET=... uvicorn --factory examples.webhooks.starlette_app:make_app
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.routing import Route

from examples.webhooks.bot import make_webhook


def make_app() -> Starlette:
    bot = make_webhook()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with bot:
            yield

    return Starlette(routes=[Route("/webhook", bot)], lifespan=lifespan)
