"""The processes of telebot's bots; see ``processes.py``. Several workers share the port of a webhook."""

from __future__ import annotations

import asyncio
import json
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import Any

from tests.adapters.processes import SECRET, be_nursery


async def work(make: str, storage: str, api: str, token: str, transport: list[str]) -> None:
    from telebot import TeleBot, apihelper, asyncio_helper

    # Older releases of telebot with a newer aiohttp.
    warnings.filterwarnings("ignore", "ssl_context is deprecated", DeprecationWarning)
    for helper in (apihelper, asyncio_helper):
        helper.API_URL = f"{api}/bot{{0}}/{{1}}"
    module, _, name = make.partition(":")
    bot = getattr(import_module(module), name)(token, storage)
    if isinstance(bot, TeleBot):
        await asyncio.to_thread(run, bot, transport)
    elif transport == ["poll"]:
        await bot.infinity_polling(timeout=5, request_timeout=10)
    else:
        await serve(bot, int(transport[1]))


def run(bot: Any, transport: list[str]) -> None:
    """Run a ``TeleBot``."""
    if transport == ["poll"]:
        bot.infinity_polling(timeout=10, long_polling_timeout=5)
        return
    from telebot import types

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers["X-Telegram-Bot-Api-Secret-Token"] == SECRET
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            bot.process_new_updates([types.Update.de_json(body)])
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Print nothing."""

    class Server(ThreadingHTTPServer):
        allow_reuse_port = True
        daemon_threads = True
        request_queue_size = 128

    with Server(("127.0.0.1", int(transport[1])), Hook) as server:
        print("listening", flush=True)
        server.serve_forever()


async def serve(bot: Any, port: int) -> None:
    """Run the webhook of an ``AsyncTeleBot``."""
    from aiohttp import web
    from telebot import types

    async def receive(request: web.Request) -> web.Response:
        assert request.headers["X-Telegram-Bot-Api-Secret-Token"] == SECRET
        await bot.process_new_updates([types.Update.de_json(await request.json())])
        return web.Response()

    app = web.Application()
    app.router.add_post("/hook", receive)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, reuse_port=True).start()
    print("listening", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    be_nursery(
        work,
        ["aiohttp.web", "stepwell.storage.redis", "stepwell.storage.postgres", "stepwell.storage.sqlite",
         "tests.adapters.telebot_walkers"],
    )  # fmt: skip
