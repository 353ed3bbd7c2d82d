"""A browser at an inspector."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from playwright.async_api import BrowserContext, Page

from stepwell.inspector.server import InspectorServer
from stepwell.storage import Storage

__all__ = ["PLACES", "Visit"]

#: Screenshots are written to this folder, if it is set.
SCREENSHOTS = os.environ.get("STEPWELL_SCREENSHOTS")
#: Every page, with a card that it has.
PLACES = (
    ("overview", "Timers"),
    ("flows", "order"),
    ("records", "Conversations"),
    ("record?bot=shop&key=(44,44)", "shop (44,44)"),
    ("runs", "Runs"),
    ("run?id=charge-1", "charge-1"),
    ("run?id=approve-1", "Waits"),
    ("queues", "Queues"),
    ("queue?name=approval", "approval"),
)


class Visit:
    """A browser at an inspector, and the requests that it made."""

    def __init__(self, server: InspectorServer, storage: Storage, context: BrowserContext, page: Page) -> None:
        self.server, self.storage, self.context, self.page = server, storage, context, page
        self.requests: list[str] = []
        self.problems: list[str] = []
        context.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", self._said)

    def _said(self, said: Any) -> None:
        # Chromium writes a line for each response of status 409 and 4xx.
        if said.type == "error" and "409 (Conflict)" not in said.text:
            self.problems.append(said.text)

    async def open(self, place: str) -> None:
        await self.page.goto(f"{self.server.address}#/{place}")

    def card(self, name: str) -> Any:
        return self.page.get_by_role("region", name=name, exact=True)

    @property
    def dialog(self) -> Any:
        return self.page.get_by_role("dialog")

    async def press(self, name: str) -> None:
        await self.page.get_by_role("button", name=name, exact=True).click()

    async def confirm(self, name: str) -> None:
        """Press a button of the dialog."""
        await self.dialog.get_by_role("button", name=name, exact=True).click()

    async def shot(self, name: str) -> None:
        if SCREENSHOTS:
            await self.page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png")
