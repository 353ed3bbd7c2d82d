"""The registration bot behind a webhook, with Starlette. FastAPI is a Starlette: ``app.add_route(...)`` takes it too.

BOT_API=https://api.telegram.org/bot<token> WEBHOOK_SECRET=... uvicorn examples.webhooks.starlette_app:app
"""

import hmac
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from examples.registration import Registration, handlers
from examples.webhooks.outcomes import TEMPORARY, check_sent, logging_final_errors
from stepwell.fsm import FSM, Router

fsm = FSM("registration_bot", storage=os.environ.get("STORAGE", "sqlite:///bot.db"), flows=[Registration])
router = Router(fsm)
router.include(handlers)


async def webhook(request: Request) -> Response:
    token = request.headers.get("X-Telegram-Bot-Api-Secret-Token", "")
    if not token or not hmac.compare_digest(token.encode(), os.environ["WEBHOOK_SECRET"].encode()):
        return Response(status_code=403)
    calls = []
    try:
        with logging_final_errors():
            calls = await router.handle(await request.json())
        async with httpx.AsyncClient() as http:
            for call in calls[:-1]:
                sent = await http.post(f"{os.environ['BOT_API']}/{call['method']}", json=call)
                check_sent(call, sent.status_code)
    except (*TEMPORARY, httpx.TransportError):
        return Response(status_code=503)  # Telegram delivers it again, and nothing is handled twice.
    return JSONResponse(calls[-1]) if calls else Response()  # The last call travels in the answer.


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with fsm:
        yield


app = Starlette(routes=[Route("/webhook", webhook, methods=["POST"])], lifespan=lifespan)
