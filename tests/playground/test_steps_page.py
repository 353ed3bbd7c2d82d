"""Edit, step back, replay and copy as test, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from tests.playground.visit import REGISTRATION

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_record_is_edited_and_an_older_one_is_refused(visits: Any) -> None:
    visit = await visits(REGISTRATION)
    page = visit.page
    await visit.say("/register")
    await visit.hear("What's your name?")
    await visit.say("Alice")
    await visit.stands_at("get_email")
    await page.get_by_role("button", name="Edit", exact=True).click()
    dialog = page.get_by_role("dialog", name="Edit the record")
    data = dialog.get_by_label("Data")
    await expect(data).to_have_value('{\n  "name": "Alice"\n}')
    await data.fill('{"name": "Bea", ')
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("The data is not valid JSON")
    await data.fill('{"name": "Bea", "age": 7}')
    await dialog.get_by_label("State").select_option("confirm")
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog).to_be_hidden()
    await visit.stands_at("confirm")
    await expect(visit.field("age").locator("td .number")).to_have_text("7")
    await expect(page.locator("#timeline > li.edit")).to_contain_text("record edited on the page")
    # The bot writes while the dialog is open.
    await page.get_by_role("button", name="Edit", exact=True).click()
    await visit.play.person("42", 42).ask("yes")
    await expect(page.locator("#record")).to_contain_text("The conversation has ended")
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("no record")
    await dialog.get_by_role("button", name="Close").click()
    visit.problems.clear()  # the console shows refused requests


async def test_a_step_back_and_another_answer(visits: Any) -> None:
    visit = await visits(REGISTRATION)
    page = visit.page
    await visit.say("/register")
    await visit.hear("What's your name?")
    await visit.say("Alice")
    await visit.hear("Got it, Alice! What's your email?")
    await visit.stands_at("get_email")
    await page.get_by_role("button", name="Step back").click()
    await expect(page.locator(".toast")).to_have_text("Back to the time before “Alice”.")
    await visit.stands_at("get_name")
    await expect(page.locator(".messages li")).to_have_count(2)
    await expect(page.locator("#timeline > li")).to_have_count(1)
    await visit.say("Bea")
    await visit.hear("Got it, Bea! What's your email?")


async def test_a_chat_is_shown_again_after_a_restart_and_can_step_back(visits: Any, tmp_path: Path) -> None:
    history = tmp_path / "play.json"
    first = await visits(REGISTRATION, history=history)
    await first.say("/register")
    await first.hear("What's your name?")
    await first.stands_at("get_name")
    await first.page.goto("about:blank")
    await first.play.__aexit__(None, None, None)
    first.requests = [first.play.address]
    first.problems.clear()
    second = await visits(REGISTRATION, history=history, empty=False)
    await second.hear("What's your name?")
    await second.stands_at("get_name")
    await second.page.get_by_role("button", name="Step back").click()
    await second.stands_at(None)
    await expect(second.page.locator(".welcome")).to_be_visible()
    await expect(second.page.get_by_role("button", name="Step back")).to_have_count(0)


async def test_a_chat_is_replayed_and_copied_as_a_test(visits: Any) -> None:
    visit = await visits(REGISTRATION)
    page = visit.page
    await visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await visit.say("/register")
    await visit.hear("What's your name?")
    await visit.say("Alice")
    await visit.hear("Got it, Alice! What's your email?")
    await visit.stands_at("get_email")
    await page.get_by_role("button", name="Replay chat").click()
    await expect(page.locator(".toast")).to_have_text("Replayed 2 steps: the same answers.")
    await visit.hear("Got it, Alice! What's your email?")
    await expect(page.locator(".messages li")).to_have_count(4)
    await page.get_by_role("button", name="Copy as test").click()
    dialog = page.get_by_role("dialog", name="This chat as a test")
    await expect(dialog.get_by_role("status")).to_contain_text("Copied. Save it as test_register.py")
    copied = await page.evaluate("navigator.clipboard.readText()")
    assert copied == await dialog.get_by_label("Test").input_value()
    assert 'assert await alice.send("Alice") == ["Got it, Alice! What\'s your email?"]' in copied
    assert copied == visit.play.write_test(visit.play.person("42", 42)).text
    await page.keyboard.press("Escape")
    await expect(dialog).to_be_hidden()
