"""Focus, recall, scroll position, theme, divider and connection of the page, in a real browser."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import expect

from tests.playground.visit import REGISTRATION

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_the_message_box_has_the_focus_and_up_recalls_messages(visits: Any) -> None:
    visit = await visits()
    press = visit.page.keyboard.press
    await expect(visit.box).to_be_focused()
    for text in ("/order", "/order", "Tea"):
        await visit.say(text)
        await expect(visit.page.locator(".messages .mine p").last).to_have_text(text)
    await expect(visit.page.locator(".messages .mine")).to_have_count(3)
    for key, shown in (("Up", "Tea"), ("Up", "/order"), ("Up", "/order"), ("Down", "Tea"), ("Down", ""), ("Down", "")):
        await press(f"Arrow{key}")
        await expect(visit.box).to_have_value(shown)
    await press("ArrowUp")
    await visit.box.press_sequentially("!")
    await press("ArrowUp")
    await expect(visit.box).to_have_value("Tea!")
    # A click on a tool leaves the focus in the box, a key on it does not.
    await visit.page.get_by_role("button", name="Repeat last update").click()
    await expect(visit.box).to_be_focused()
    await expect(visit.page.locator(".toast")).to_have_text("“Tea”: handled once, first answer repeated.")
    await visit.page.get_by_role("button", name="Repeat last update").press("Enter")
    await expect(visit.page.get_by_role("button", name="Repeat last update")).to_be_focused()


async def test_an_error_is_shown_at_its_message_and_ends_the_marks_of_the_update_before(visits: Any) -> None:
    visit = await visits(width=375)
    await visit.say("/order")
    await visit.hear("What will it be?")
    await visit.page.get_by_role("tab", name="State").click()
    await expect(visit.field("state")).to_have_class("fresh")
    await visit.page.get_by_role("tab", name="Chat").click()
    await visit.say("/crash")
    failed = visit.page.locator(".messages .mine").last
    await expect(failed.locator(".failure")).to_have_text("✕ RuntimeError: as you wish")
    await visit.page.get_by_role("tab", name="State").click()
    await expect(visit.field("state")).not_to_have_class("fresh")


async def test_reading_older_messages_is_not_interrupted_by_new_ones(visits: Any) -> None:
    visit = await visits()
    page, alice = visit.page, visit.play.person("42", 42)
    messages = page.locator(".messages")
    for number in range(30):
        await alice.send(f"message {number}")
    await expect(messages.locator("li").last).to_contain_text("message 29")
    await messages.evaluate("box => { box.scrollTop = 100 }")
    visit.play.world.post(alice.room, visit.play.bot.user, text="An answer.")
    newer = page.get_by_role("button", name="New messages")
    await expect(newer).to_be_visible()
    assert await messages.evaluate("box => box.scrollTop") == 100
    # Another chat and back.
    await page.locator('[data-room="43"]').click()
    await page.locator('[data-room="42"]').click()
    assert await messages.evaluate("box => box.scrollTop") == 100
    visit.play.world.post(alice.room, visit.play.bot.user, text="Another answer.")
    await newer.click()
    await expect(messages.locator("li").last).to_be_in_viewport()
    await expect(newer).to_be_hidden()
    # Own messages are always shown.
    await messages.evaluate("box => { box.scrollTop = 100 }")
    await visit.say("mine")
    await expect(messages.locator("li", has_text="mine")).to_be_in_viewport()


async def test_the_panes_can_be_resized_and_a_reload_keeps_them_with_the_chat(visits: Any) -> None:
    visit = await visits()
    page = visit.page
    divider, chats = page.get_by_role("separator", name="Width of the chat"), page.locator("#chats")

    async def width() -> float:
        box = await chats.bounding_box()
        assert box is not None
        return box["width"]

    before = await width()
    await divider.press("ArrowLeft")
    assert await width() < before
    await expect(divider).to_have_attribute("aria-valuenow", "43")
    box = await divider.bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + 4, 300)
    await page.mouse.down()
    await page.mouse.move(900, 300)
    await page.mouse.up()
    assert await width() == pytest.approx(900, abs=10)
    await page.locator('[data-room="43"]').click()
    await page.reload()
    await expect(page.locator(".pane h2")).to_have_text("Bob")
    assert await width() == pytest.approx(900, abs=10)
    await divider.dblclick()
    assert await width() == pytest.approx(before, abs=1)


async def test_the_theme_is_switched_and_kept(visits: Any) -> None:
    visit = await visits(REGISTRATION)
    page = visit.page
    colour = "getComputedStyle(document.body).backgroundColor"
    light = await page.evaluate(colour)
    await page.get_by_role("button", name="Switch to dark colours").click()
    assert await page.evaluate(colour) != light
    await page.reload()
    await expect(page.get_by_role("button", name="Switch to light colours")).to_have_text("Light")
    assert await page.evaluate(colour) != light


async def test_a_page_without_its_playground_says_so_everywhere(visits: Any) -> None:
    visit = await visits(REGISTRATION)
    await expect(visit.page.locator(".dot")).to_have_class("dot running")
    await visit.play.__aexit__(None, None, None)
    await expect(visit.page.locator("#banner")).to_contain_text("The playground has stopped.")
    await expect(visit.page.locator(".dot")).to_have_class("dot lost")
    await expect(visit.page.locator(".status")).to_have_text("not connected")
    await visit.page.goto("about:blank")
    visit.requests = [visit.play.address]
    visit.problems.clear()
