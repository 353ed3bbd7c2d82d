"""The processes of python-telegram-bot's bots; see ``processes.py``."""

from __future__ import annotations

import asyncio
import socket
from importlib import import_module
from typing import Any

from tests.adapters.processes import SECRET, be_nursery


async def work(make: str, storage: str, api: str, token: str, transport: list[str]) -> None:
    from telegram import Update
    from telegram.ext import ApplicationBuilder

    module, _, name = make.partition(":")
    builder = ApplicationBuilder().token(token).base_url(f"{api}/bot").concurrent_updates(transport[0] != "poll")
    async with getattr(import_module(module), name)(storage, builder) as application:
        await application.start()
        if transport[0] == "poll":
            await application.updater.start_polling(timeout=5)
        elif transport[0] == "hook":
            # The framework's own webhook. Several workers could share the port.
            shared = socket.create_server(("127.0.0.1", int(transport[1])), reuse_port=True)
            shared.setblocking(False)
            url = f"http://127.0.0.1:{transport[1]}/hook"
            await application.updater.start_webhook(url_path="hook", unix=shared, webhook_url=url, secret_token=SECRET)
        else:
            from aiohttp import web

            async def receive(request: web.Request) -> web.Response:
                assert request.headers["X-Telegram-Bot-Api-Secret-Token"] == SECRET
                update: Any = Update.de_json(await request.json(), application.bot)
                await application.process_update(update)
                return web.Response()

            app = web.Application()
            app.router.add_post("/hook", receive)
            runner = web.AppRunner(app)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", int(transport[1]), reuse_port=True).start()
        print("listening", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    be_nursery(
        work,
        ["telegram.ext", "tornado.httpserver", "aiohttp.web", "examples.ptb_registration", "examples.ptb_wizard",
         "stepwell.storage.redis", "stepwell.storage.postgres", "stepwell.storage.sqlite",
         "tests.adapters.ptb_walkers"],
    )  # fmt: skip
