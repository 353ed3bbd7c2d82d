"""A Bot API with one bot; a browser and the playgrounds that it opens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from stepwell.playground.botapi import Bot, BotAPI, Person
from stepwell.playground.play import Playground
from tests.playground.browser import PATIENCE, launched
from tests.playground.visit import CAFE, Visit


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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with launched() as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="module")
async def visits(browser: Browser, tmp_path: Path) -> AsyncIterator[Any]:
    """Open playgrounds; check at the end that no page had errors or made requests to other servers."""
    opened: list[Visit] = []

    async def visit(bot: Path = CAFE, *, width: int = 1440, empty: bool = True, **options: Any) -> Visit:
        play = await Playground(bot, storage=f"sqlite:///{tmp_path}/play.db", **options).__aenter__()
        context = await browser.new_context(viewport={"width": width, "height": 800})
        context.set_default_timeout(PATIENCE * 1000)
        opened.append(new := Visit(play, context, await context.new_page()))
        await new.page.goto(play.url)
        assert await play.ready()
        await expect(new.page.locator(".welcome .chip" if empty else ".messages .mine").first).to_be_visible()
        return new

    expect.set_options(timeout=PATIENCE * 1000)
    try:
        yield visit
    finally:
        for each in opened:
            await each.context.close()
            if not each.play.board.closed:
                await each.play.__aexit__(None, None, None)
    for each in opened:
        assert each.problems == []
        assert {urlsplit(url).netloc for url in each.requests} == {urlsplit(each.play.address).netloc}
