"""The playground, checked by axe."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import expect

from tests.web.axe import problems

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("width", [375, 1440], ids=["phone", "desk"])
async def test_axe_finds_no_problem_in_light_and_dark(visits: Any, width: int) -> None:
    visit = await visits(width=width)
    page = visit.page
    assert await problems(page) == []  # the introduction
    for text in ("/order", "/crash", "Tea"):
        await visit.say(text)
    await expect(page.locator(".failure")).to_be_visible()
    await page.get_by_role("button", name="Repeat last update").click()
    await expect(page.locator(".toast")).to_be_visible()
    assert await problems(page) == []
    if width < 720:
        await page.get_by_role("tab", name="State").click()
        assert await problems(page) == []
    await page.locator("#timeline > li > details > summary").first.click()
    await page.get_by_role("button", name="Edit", exact=True).click()
    assert await problems(page) == []
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="Switch to dark colours").click()
    assert await problems(page, "color-contrast") == []
