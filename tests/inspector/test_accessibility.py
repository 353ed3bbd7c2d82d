"""Every page and dialog of the inspector, checked by axe."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import expect

from tests.inspector.visit import PLACES
from tests.web.axe import problems

pytestmark = pytest.mark.asyncio(loop_scope="module")
DIALOGS = (
    ("record?bot=shop&key=(44,44)", "Set state"),
    ("run?id=charge-1", "Cancel the run"),
    ("run?id=approve-1", "Answer"),
)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_axe_finds_no_problem_on_any_page(visits: Any, dark: bool) -> None:
    visit = await visits(dark=dark, allow_write=True)
    # Only the colours differ.
    rules = ("color-contrast",) if dark else ()
    for place, card in PLACES:
        await visit.open(place)
        await expect(visit.card(card)).to_be_visible()
        assert (place, await problems(visit.page, *rules)) == (place, [])
    for place, button in DIALOGS:
        await visit.open(place)
        await visit.press(button)
        assert (button, await problems(visit.page, *rules)) == (button, [])
        await visit.page.keyboard.press("Escape")
    await visit.page.keyboard.press("/")
    await expect(visit.page.get_by_role("option").first).to_be_visible()
    assert await problems(visit.page, *rules) == []
