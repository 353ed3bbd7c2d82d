"""The registration bot behind a webhook, with aiohttp.

BOT_TOKEN=... WEBHOOK_SECRET=... python -m examples.webhooks.aiohttp_app
"""

from collections.abc import AsyncIterator

from aiohttp import web

from examples.webhooks.bot import make_webhook


def make_app() -> web.Application:
    bot = make_webhook()

    async def webhook(request: web.Request) -> web.Response:
        secret = request.headers.get("X-Telegram-Bot-Api-Secret-Token", "")
        return web.Response(status=await bot.handle(secret, await request.read()))

    async def opened(app: web.Application) -> AsyncIterator[None]:
        async with bot:
            yield

    app = web.Application()
    app.router.add_post("/webhook", webhook)
    app.cleanup_ctx.append(opened)
    return app


if __name__ == "__main__":
    web.run_app(make_app())
