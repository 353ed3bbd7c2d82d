"""The inspector in a real browser."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, expect

from stepwell.fsm import FSM
from stepwell.inspector import views
from stepwell.inspector.server import InspectorServer
from stepwell.nodes import NodeFlow
from stepwell.storage import Storage, open_storage
from tests.inspector import shop
from tests.playground.browser import launched

pytestmark = pytest.mark.asyncio(loop_scope="module")
#: Screenshots are written to this folder, if it is set.
SCREENSHOTS = os.environ.get("STEPWELL_SCREENSHOTS")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with launched() as browser:
        yield browser


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

    async def press(self, name: str) -> None:
        await self.page.get_by_role("button", name=name, exact=True).click()

    async def shot(self, name: str) -> None:
        if SCREENSHOTS:
            await self.page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png")


@pytest_asyncio.fixture(loop_scope="module")
async def visits(browser: Browser, tmp_path: Path) -> AsyncIterator[Any]:
    """Open inspectors; check at the end that no page had errors or made requests to other servers."""
    opened: list[Visit] = []

    async def visit(*, width: int = 1280, dark: bool = False, **options: Any) -> Visit:
        storage = open_storage(f"sqlite:///{tmp_path}/shop.db")
        await storage.open()
        if not opened:
            await shop.fill(storage)
        server = await InspectorServer(storage, shop.flows(), **options).__aenter__()
        context = await browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light"
        )
        context.set_default_timeout(15_000)
        opened.append(new := Visit(server, storage, context, await context.new_page()))
        await new.page.goto(server.url)
        await expect(new.card("shop")).to_be_visible()
        return new

    expect.set_options(timeout=15_000)
    try:
        yield visit
    finally:
        for each in opened:
            await each.context.close()
            await each.server.__aexit__(None, None, None)
            await each.storage.close()
    for each in opened:
        assert each.problems == []
        assert {urlsplit(url).netloc for url in each.requests} == {urlsplit(each.server.address).netloc}


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
    await visit.page.get_by_role("link", name="Runs").click()
    await visit.page.get_by_label("Status").select_option("failed")
    await visit.press("Filter")
    await expect(visit.page.get_by_role("link", name="approve-1")).to_have_count(0)
    await visit.page.get_by_role("link", name="charge-1").click()
    await expect(visit.card("Errors")).to_contain_text("the card was declined <img")
    await expect(visit.card("Errors")).to_contain_text("in exec")
    await visit.open("run?id=pack-1")
    await expect(visit.card("Nodes").get_by_role("row", name="Count")).to_contain_text("ms")
    await expect(visit.card("Nodes").get_by_role("row", name="Pack")).to_contain_text("failed")
    await visit.shot("run")
    await visit.page.get_by_role("link", name="Flows").click()
    await expect(visit.card("order")).to_contain_text("states that the flow does not have: voucher")
    await expect(visit.page.locator('g.state.bad[data-state="voucher"]')).to_be_visible()
    await expect(visit.page.locator('g.state.bad[data-state="Pack"]')).to_contain_text("1 failed")
    await expect(visit.card("approval").get_by_role("row", name="approved")).to_contain_text("parked")
    await visit.shot("flows")
    await visit.page.locator('g.state[data-state="address"]').click()
    await expect(visit.page.get_by_role("link", name="(43,43)")).to_be_visible()


async def test_a_search_shows_hits_as_it_finds_them_and_can_be_stopped(
    visits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit = await visits()
    monkeypatch.setattr(views, "LOOKED", 1)
    monkeypatch.setattr("stepwell.operate.search.PAGE", 1)
    held = asyncio.Event()

    async def hold(route: Any) -> None:
        await held.wait()
        await route.continue_()

    await visit.page.route("**/api/records?*after=*", hold)
    await visit.open("records?bot=shop&field=to.city%3DRome")
    await expect(visit.page.get_by_text("Searching: 1 found in 1 records.")).to_be_visible()
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


async def test_a_conversation_in_a_removed_state_is_moved(visits: Any) -> None:
    visit = await visits(allow_write=True)
    await visit.open("record?bot=shop&key=(44,44)")
    await visit.press("Set state")
    await visit.page.get_by_role("combobox", name="State").select_option("item")
    await visit.shot("dialog")
    await visit.page.get_by_role("dialog").get_by_role("button", name="Set state").click()
    await expect(visit.card("shop (44,44)")).not_to_contain_text("not in the flow")
    await visit.press("Change name")
    await visit.page.get_by_label("Value").fill("Cleo")
    await visit.press("Set")
    await expect(visit.card("Data")).to_contain_text("Cleo")


async def test_the_second_of_two_editors_sees_the_conflict_and_nothing_is_lost(visits: Any) -> None:
    first, second = await visits(allow_write=True), await visits(allow_write=True)
    for each in (first, second):
        await each.open("record?bot=shop&key=(43,43)")
        await each.press("Change name")
    await first.page.get_by_label("Value").fill("Ben")
    await first.press("Set")
    await expect(first.card("Data")).to_contain_text("Ben")
    await second.page.get_by_label("Value").fill("Bert")
    await second.press("Set")
    await expect(second.page.locator("#banner")).to_contain_text("Nothing was written. Changed fields: name.")
    await expect(second.card("Data")).to_contain_text("Ben")
    await second.shot("conflict")


async def test_a_parked_run_is_answered_and_a_failed_one_is_retried(visits: Any) -> None:
    visit = await visits(allow_write=True)
    await visit.open("run?id=approve-1")
    await expect(visit.card("Waits")).to_contain_text("Approve it?")
    assert "123:abc" not in await visit.page.content()
    await visit.press("Answer")
    await visit.page.get_by_role("textbox", name="Answer").fill("yes")
    await visit.page.get_by_role("dialog").get_by_role("button", name="Answer").click()
    await expect(visit.card("Waits")).to_contain_text("An answer is stored")
    await expect(visit.page.get_by_role("button", name="Answer", exact=True)).to_have_count(0)
    approval: NodeFlow = shop.flows()[2]
    assert (await approval.resume("approve-1", storage=visit.storage))["approved"] == "yes"
    await visit.open("run?id=charge-1")
    await visit.press("Retry")
    await visit.page.get_by_role("dialog").get_by_role("button", name="Retry").click()
    await expect(visit.card("charge-1")).to_contain_text("queued")
    await visit.press("Cancel the run")
    await visit.page.get_by_label("Reason").fill("paid twice")
    await visit.page.get_by_role("dialog").get_by_role("button", name="Cancel the run").click()
    await expect(visit.card("charge-1")).to_contain_text("paid twice")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_the_pages_fit_a_phone(visits: Any, dark: bool) -> None:
    visit = await visits(width=390, dark=dark, allow_write=True)
    for place, card in (
        ("overview", "Timers"),
        ("flows", "order"),
        ("records", "Conversations"),
        ("record?bot=shop&key=(44,44)", "shop (44,44)"),
        ("runs", "Runs"),
        ("run?id=charge-1", "charge-1"),
    ):
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
    await expect(visit.page.get_by_role("link", name="Flows")).to_have_attribute("aria-current", "page")
    await expect(visit.page.get_by_role("link", name="Flows")).to_be_focused()
