"""The playground, checked by axe."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import expect

from tests.web.axe import problems

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_axe_finds_nothing_serious_in_light_and_dark_colours(visits: Any) -> None:
    visit = await visits()
    await visit.say("/order")
    await visit.hear("What will it be?")
    await visit.say("/crash")
    await expect(visit.page.locator("#timeline")).to_contain_text("as you wish")
    assert [each for each in await problems(visit.page) if each.startswith(("serious", "critical"))] == []
    await visit.page.get_by_role("button", name="Switch to dark colours").click()
    await visit.page.reload()
    await expect(visit.page.locator("html")).to_have_attribute("data-theme", "dark")
    await expect(visit.page.locator("#timeline")).to_contain_text("as you wish")
    assert await problems(visit.page, "color-contrast") == []
