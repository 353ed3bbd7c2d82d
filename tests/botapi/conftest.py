"""A Bot API with one bot."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from stepwell.botapi import Bot, BotAPI, Person


class Client:
    """A bot's plain HTTP client."""

    def __init__(self, api: BotAPI, token: str) -> None:
        # Without sockets; the tests with real clients use them.
        transport = httpx.ASGITransport(app=api.app)
        self.http = httpx.AsyncClient(base_url=f"{api.url}/bot{token}/", transport=transport, timeout=30)

    async def __call__(self, method: str, **params: Any) -> Any:
        """Return the result, or (code, description) of an error."""
        body = (await self.http.post(method, json=params)).json()
        return body["result"] if body["ok"] else (body["error_code"], body["description"])


@pytest.fixture
async def api() -> AsyncIterator[BotAPI]:
    """A Bot API that does not listen on a port."""
    api = BotAPI(port=8081, webhook_pause=0.05)
    yield api
    await api.webhooks.close()


@pytest.fixture
def bot(api: BotAPI) -> Bot:
    return api.bot("my_bot")


@pytest.fixture
def chat(api: BotAPI, bot: Bot) -> Person:
    return api.chat(bot, first_name="Alice")


@pytest.fixture
async def call(api: BotAPI, bot: Bot) -> AsyncIterator[Client]:
    client = Client(api, bot.token)
    yield client
    await client.http.aclose()
