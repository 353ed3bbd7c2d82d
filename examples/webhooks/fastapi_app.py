"""The registration bot behind a webhook, with FastAPI.

BOT_TOKEN=... WEBHOOK_SECRET=... uvicorn --factory examples.webhooks.fastapi_app:make_app
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.routing import Route

from examples.webhooks.bot import make_webhook


def make_app() -> FastAPI:
    bot = make_webhook()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with bot:
            yield

    app = FastAPI(lifespan=lifespan)
    app.router.routes.append(Route("/webhook", bot))
    return app
