"""A browser and the playgrounds that it opens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest_asyncio
from playwright.async_api import Browser, expect

from stepwell.playground.play import Playground
from tests.playground.browser import PATIENCE, launched
from tests.playground.visit import CAFE, Visit


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
