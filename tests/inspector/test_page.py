"""The inspector in a real browser."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from playwright.async_api import expect

from stepwell.fsm import FSM
from tests.constants import Constants
from tests.inspector import shop
from tests.inspector.visit import PLACES

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_an_operator_finds_what_is_stuck_and_why_a_run_failed(visits: Any) -> None:
    visit = await visits()
    assert "token" not in visit.page.url
    await expect(visit.card("shop")).to_contain_text("not in the flow")
    await visit.shot("overview")
    await visit.card("shop").get_by_role("link", name="1", exact=True).click()
    await visit.page.get_by_role("link", name="(44,44)").click()
    await expect(visit.card("Data")).to_contain_text(shop.MARKUP)
    await expect(visit.card("Data")).to_contain_text("•••")
    await expect(visit.card("History").get_by_role("row")).to_have_count(3)
    await expect(visit.card("History").get_by_role("row", name="item")).to_contain_text("ago")
    assert "hunter2" not in await visit.page.content()
    assert await visit.page.locator("#content img").count() == 0
    await expect(visit.page.get_by_role("button", name="Set state")).to_have_count(0)
    await visit.shot("record")
    await visit.page.get_by_role("link", name="Runs", exact=True).click()
    await visit.page.get_by_label("Status").select_option("failed")
    await visit.press("Filter")
    await expect(visit.page.get_by_role("link", name="approve-1")).to_have_count(0)
    await visit.page.get_by_role("link", name="charge-1").click()
    await expect(visit.card("Errors")).to_contain_text("the card was declined <img")
    await expect(visit.card("Errors")).to_contain_text("in exec")
    await visit.open("run?id=pack-1")
    await expect(visit.card("Timeline").get_by_role("row", name="Count")).to_contain_text("ms")
    await expect(visit.card("Timeline").get_by_role("row", name="Pack")).to_contain_text("failed")
    await visit.shot("run")
    await visit.page.get_by_role("link", name="Flows").click()
    await expect(visit.card("order")).to_contain_text("states that the flow does not have: voucher")
    await expect(visit.page.locator('g.state.bad[data-state="voucher"]')).to_be_visible()
    await expect(visit.page.locator('g.state.bad[data-state="Pack"]')).to_contain_text("1 failed")
    await expect(visit.card("approval").get_by_role("row", name="approved")).to_contain_text("parked")
    await visit.shot("flows")
    await visit.page.locator('g.state[data-state="address"]').click()
    await expect(visit.page.get_by_role("link", name="(43,43)")).to_be_visible()


async def test_a_search_shows_hits_as_it_finds_them_and_can_be_stopped(visits: Any, constants: Constants) -> None:
    visit = await visits()
    constants(views_looked=1, search_page=1)
    held = asyncio.Event()

    async def hold(route: Any) -> None:
        await held.wait()
        await route.continue_()

    await visit.page.route("**/api/records?*after=*", hold)
    await visit.open("records?bot=shop&field=to.city%3DRome")
    await expect(visit.page.get_by_text("Searching: 1 found in 1 record.")).to_be_visible()
    await expect(visit.page.get_by_role("link", name="(42,42)")).to_be_visible()
    await visit.press("Stop")
    held.set()
    await expect(visit.page.get_by_role("link", name="Search on")).to_be_visible()
    await expect(visit.page.get_by_text("2 shown, 2 read; there are more")).to_be_visible()
    await visit.page.get_by_role("link", name="Search on").click()
    await expect(visit.page.get_by_text("1 shown, 1 read")).to_be_visible()


async def test_a_page_shows_changes_without_a_reload(visits: Any) -> None:
    visit = await visits()
    await visit.open("record?bot=shop&key=(42,42)")
    await expect(visit.card("shop (42,42)")).to_contain_text("address")
    fsm = FSM("shop", storage=visit.storage, flows=[shop.Order], run_timers=False)
    async with fsm.conversation(key=(42, 42)) as ctx:
        ctx.transition("paid")
    await expect(visit.card("shop (42,42)")).to_contain_text("paid")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_the_pages_fit_a_phone(visits: Any, dark: bool) -> None:
    visit = await visits(width=390, dark=dark, allow_write=True)
    for place, card in PLACES:
        await visit.open(place)
        await expect(visit.card(card)).to_be_visible()
        width = await visit.page.evaluate("document.querySelector('main').scrollWidth")
        assert (place, width) == (place, 390)
        await visit.shot(f"phone-{'dark-' if dark else ''}{place.partition('?')[0]}")


async def test_the_theme_is_chosen_and_kept_and_the_keyboard_reaches_the_pages(visits: Any) -> None:
    visit = await visits()
    await visit.page.get_by_role("button", name="Switch to dark colours").click()
    await visit.page.reload()
    await expect(visit.page.locator("html")).to_have_attribute("data-theme", "dark")
    await expect(visit.card("shop")).to_be_visible()
    await visit.page.keyboard.press("Tab")
    await expect(visit.page.get_by_role("link", name="Skip to the content")).to_be_focused()
    await visit.page.keyboard.press("Tab")
    await visit.page.keyboard.press("Tab")
    await visit.page.keyboard.press("Enter")
    await expect(visit.page.get_by_role("link", name="Runs", exact=True)).to_have_attribute("aria-current", "page")
    await expect(visit.page.get_by_role("link", name="Runs", exact=True)).to_be_focused()


async def test_a_page_continues_after_a_response_that_was_cut_off(visits: Any) -> None:
    visit = await visits()
    await visit.page.clock.install()
    await visit.page.route("**/api/runs?*", lambda route: route.fulfill(content_type="application/json", body='{"ok":'))
    await visit.open("runs")
    await expect(visit.page.locator("#banner")).to_contain_text("The inspector does not respond.")
    await visit.page.unroute("**/api/runs?*")
    await visit.page.clock.run_for(4000)
    await expect(visit.card("Runs")).to_be_visible()
    await expect(visit.page.locator("#banner")).to_be_hidden()
