"""The webhook examples, served by their real frameworks, with updates from the local Bot API."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import httpx
import pytest
from aiohttp.test_utils import TestServer

from stepwell.botapi import BotAPI
from stepwell.fsm import FSM
from stepwell.telegram import BotClient
from stepwell.web.serving import Serving

SECRET = "s3cret-token"


@asynccontextmanager
async def asgi(name: str) -> AsyncIterator[str]:
    app = importlib.import_module(f"examples.webhooks.{name}").make_app()
    server = Serving(app, name=name)
    async with app.router.lifespan_context(app):
        yield f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}"
        await server.stop()


@asynccontextmanager
async def aiohttp(name: str) -> AsyncIterator[str]:
    async with TestServer(importlib.import_module(f"examples.webhooks.{name}").make_app()) as server:
        yield str(server.make_url("")).rstrip("/")


class Quiet(WSGIRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


@asynccontextmanager
async def wsgi(name: str) -> AsyncIterator[str]:
    app = _django() if name == "django_app" else importlib.import_module(f"examples.webhooks.{name}").make_app()
    with make_server("127.0.0.1", 0, app, handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            await asyncio.to_thread(server.shutdown)
            thread.join()


def _django() -> Any:
    from django.conf import settings
    from django.core.wsgi import get_wsgi_application

    if not settings.configured:
        settings.configure(ROOT_URLCONF="examples.webhooks.django_app", ALLOWED_HOSTS=["127.0.0.1"])
    # Its webhook reads the environment of this test.
    sys.modules.pop("examples.webhooks.django_app", None)
    from django.urls import clear_url_caches

    clear_url_caches()
    return get_wsgi_application()


FRAMEWORKS: dict[str, Callable[[str], Any]] = {
    "starlette": asgi, "fastapi": asgi, "aiohttp": aiohttp, "flask": wsgi, "django": wsgi,
}  # fmt: skip


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_webhook_in_its_framework(framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/bot.db"
    async with BotAPI(webhook_pause=0.05) as api:
        bot = api.bot("my_bot")
        for name, value in {
            "BOT_TOKEN": bot.token, "BOT_API": api.url, "WEBHOOK_SECRET": SECRET, "STEPWELL_STORAGE": url,
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        async with FRAMEWORKS[framework](f"{framework}_app") as address:
            hook = f"{address}/webhook"
            async with BotClient(bot.token, api=api.url) as client:
                await client.call("setWebhook", url=hook, secret_token=SECRET)
            alice = api.chat(bot)
            assert await alice.ask("/register") == "What's your name?"
            assert await alice.ask("Alice") == "Got it, Alice! What's your email?"
            async with httpx.AsyncClient(trust_env=False) as http:
                body = b'{"update_id": 1}'
                assert (await http.post(hook, content=body)).status_code == 403
                wrong = {"X-Telegram-Bot-Api-Secret-Token": "s\xe9cret".encode()}
                assert (await http.post(hook, content=body, headers=wrong)).status_code == 403
                not_utf8 = {"X-Telegram-Bot-Api-Secret-Token": b"s\xe9cret"}
                assert (await http.post(hook, content=body, headers=not_utf8)).status_code == 403
                secret = {"X-Telegram-Bot-Api-Secret-Token": SECRET}
                # It is kept aside: Telegram would deliver it again for ever.
                assert (await http.post(hook, content=b"no JSON", headers=secret)).status_code == 200
                assert (await http.get(hook, headers=secret)).status_code == 405
        async with FSM("registration_bot", storage=url, flows=[]) as fsm:
            record = await fsm.storage.get_state("registration_bot", (42, 42))
            assert record is not None
            assert record.data == {"name": "Alice"}
