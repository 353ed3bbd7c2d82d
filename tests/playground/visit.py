"""A browser at a playground."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.async_api import BrowserContext, Locator, Page, expect

from stepwell.playground.play import Playground

__all__ = ["CAFE", "REGISTRATION", "Visit"]

HERE = Path(__file__).parent
REGISTRATION = HERE.parents[1] / "examples" / "registration.py"
CAFE = HERE / "cafe.py"


class Visit:
    """A browser at a playground, and the requests that it made."""

    def __init__(self, play: Playground, context: BrowserContext, page: Page) -> None:
        self.play, self.context, self.page = play, context, page
        self.requests: list[str] = []
        self.problems: list[str] = []
        context.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda said: self.problems.append(said.text) if said.type == "error" else None)

    async def say(self, text: str) -> None:
        await self.box.fill(text)
        await self.page.keyboard.press("Enter")

    async def hear(self, text: str) -> None:
        await expect(self.page.locator(".messages .theirs p").last).to_have_text(text)

    async def stands_at(self, state: str | None) -> None:
        lit = self.page.locator("g.state.current")
        if state is None:
            await expect(lit).to_have_count(0)
        else:
            await expect(lit).to_have_attribute("data-state", state)

    @property
    def box(self) -> Locator:
        """The message box."""
        return self.page.get_by_role("textbox", name="Message")

    def field(self, name: str) -> Any:
        return self.page.locator(f'#record tr[data-field="{name}"]')
