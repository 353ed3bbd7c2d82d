"""The processes of aiogram bots; see ``processes.py``."""

from __future__ import annotations

import asyncio
from importlib import import_module

from tests.adapters.processes import SECRET, be_nursery


async def work(make: str, storage: str, api: str, token: str, transport: list[str]) -> None:
    from aiogram import Bot
    from aiogram.client.session.aiohttp import AiohttpSession
    from aiogram.client.telegram import TelegramAPIServer
    from aiogram.webhook.aiohttp_server import SimpleRequestHandler, setup_application
    from aiohttp import web

    module, _, name = make.partition(":")
    dispatcher = getattr(import_module(module), name)(storage)
    bot = Bot(token, session=AiohttpSession(api=TelegramAPIServer.from_base(api)))
    if transport == ["poll"]:
        # One after the other: an update is confirmed when it is handled.
        await dispatcher.start_polling(bot, handle_as_tasks=False, polling_timeout=5)
        return
    app = web.Application()
    # Not in the background: a webhook is answered when its update is handled.
    hook = SimpleRequestHandler(dispatcher, bot, handle_in_background=False, secret_token=SECRET)
    hook.register(app, "/hook")
    setup_application(app, dispatcher, bot=bot)
    runner = web.AppRunner(app)
    await runner.setup()
    # Several workers share the port; the system spreads connections among them.
    await web.TCPSite(runner, "127.0.0.1", int(transport[1]), reuse_port=True).start()
    print("listening", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    be_nursery(
        work,
        ["aiogram.webhook.aiohttp_server", "examples.aiogram_registration", "examples.aiogram_states",
         "stepwell.storage.redis", "stepwell.storage.postgres", "stepwell.storage.sqlite", "tests.adapters.walkers"],
    )  # fmt: skip
