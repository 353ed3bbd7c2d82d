"""The registration bot behind a webhook, with aiohttp.

BOT_API=https://api.telegram.org/bot<token> WEBHOOK_SECRET=... python -m examples.webhooks.aiohttp_app
"""

import hmac
import os
from collections.abc import AsyncIterator

from aiohttp import ClientError, ClientSession, web

from examples.registration import Registration, handlers
from examples.webhooks.outcomes import TEMPORARY, check_sent, logging_final_errors
from stepwell.fsm import FSM, Router

fsm = FSM("registration_bot", storage=os.environ.get("STORAGE", "sqlite:///bot.db"), flows=[Registration])
router = Router(fsm)
router.include(handlers)


async def webhook(request: web.Request) -> web.Response:
    token = request.headers.get("X-Telegram-Bot-Api-Secret-Token", "")
    if not token or not hmac.compare_digest(token.encode(errors="replace"), os.environ["WEBHOOK_SECRET"].encode()):
        return web.Response(status=403)
    calls = []
    try:
        with logging_final_errors():
            calls = await router.handle(await request.json())
        async with ClientSession() as http:
            for call in calls[:-1]:
                async with http.post(f"{os.environ['BOT_API']}/{call['method']}", json=call) as sent:
                    check_sent(call, sent.status)
    except (*TEMPORARY, ClientError, TimeoutError):
        return web.Response(status=503)  # Telegram delivers it again, and nothing is handled twice.
    return web.json_response(calls[-1]) if calls else web.Response()  # The last call travels in the answer.


async def opened(app: web.Application) -> AsyncIterator[None]:
    async with fsm:
        yield


def make_app() -> web.Application:
    app = web.Application()
    app.router.add_post("/webhook", webhook)
    app.cleanup_ctx.append(opened)
    return app


if __name__ == "__main__":
    web.run_app(make_app())
