"""The pictures of the playground in the docs: ``python -m tests.playground.pictures``."""

from __future__ import annotations

import asyncio
from pathlib import Path

from playwright.async_api import Browser, expect

from stepwell.playground.play import Playground
from tests.playground.browser import launched
from tests.playground.visit import REGISTRATION, Visit

IMAGES = Path(__file__).parents[2] / "docs" / "images"


async def take(browser: Browser, name: str, width: int, height: int, *, dark: bool = False) -> None:
    """Take a picture in the middle of a registration."""
    async with Playground(REGISTRATION, storage="memory://") as play:
        assert await play.ready()
        colours = "dark" if dark else "light"
        context = await browser.new_context(viewport={"width": width, "height": height}, color_scheme=colours)
        visit = Visit(play, context, await context.new_page())
        await visit.page.goto(play.url)
        for said, answer in (("/register", "What's your name?"), ("Alice", "Got it, Alice! What's your email?")):
            await visit.say(said)
            await visit.hear(answer)
        await expect(visit.page.locator("#timeline .steps .title")).to_have_count(4)
        if width < 720:
            await visit.page.get_by_role("tab", name="State").click()
        await visit.stands_at("get_email")
        # The animation of the new state.
        await asyncio.sleep(1)
        await visit.page.screenshot(path=IMAGES / f"{name}.png")
        await context.close()


async def main() -> None:
    async with launched() as browser:
        await take(browser, "playground", 1200, 720)
        await take(browser, "playground-dark", 1200, 720, dark=True)
        await take(browser, "playground-phone", 375, 700)


if __name__ == "__main__":
    asyncio.run(main())
