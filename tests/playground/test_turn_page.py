"""The state of a turn on the page, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from stepwell.playground.play import Playground
from tests.playground.browser import PATIENCE
from tests.playground.visit import Visit
from tests.web.axe import problems

pytestmark = pytest.mark.asyncio(loop_scope="module")

AGENT = Path(__file__).parent / "agent.py"


async def test_the_turn_of_a_chat_is_shown_with_its_messages_its_tools_and_its_questions(
    browser: Any, tmp_path: Path
) -> None:
    expect.set_options(timeout=PATIENCE * 1000)
    async with Playground(AGENT, storage=f"sqlite:///{tmp_path}/agent.db") as play:
        context = await browser.new_context(viewport={"width": 1280, "height": 800})
        context.set_default_timeout(PATIENCE * 1000)
        visit = Visit(play, context, await context.new_page())
        await visit.page.goto(play.url)
        card = visit.page.locator("#turn-card")
        part = card.locator(".part")
        await expect(card).to_be_hidden()
        await visit.say("tea")
        await expect(part.filter(has_text="In this turn").locator("li")).to_have_text(["Alice tea"])
        tool = part.filter(has_text="Tools").locator("li")
        await expect(tool).to_contain_text("look_up runs at most once")
        await visit.say("and milk")
        await expect(part.filter(has_text="Waiting").locator("li")).to_have_text(["Alice and milk"])
        await visit.say("go")
        await expect(card).to_contain_text("waiting for an answer")
        await expect(tool).to_contain_text("done")
        question = part.filter(has_text="Questions").locator("li")
        await expect(question).to_contain_text("Send TEA? open Yes / No")
        await expect(question.locator(".clock")).to_contain_text("left")
        assert await problems(visit.page) == []
        # Another chat has no turn.
        await visit.page.locator('[data-room="43"]').click()
        await expect(card).to_be_hidden()
        await visit.page.locator('[data-room="42"]').click()
        await visit.page.locator(".inline").get_by_role("button", name="Yes").click()
        await expect(visit.page.locator(".messages")).to_contain_text("TEA")
        await expect(part.filter(has_text="In this turn").locator("li")).to_have_text(["Alice and milk"])
        await expect(visit.page.get_by_role("article", name="Record")).to_be_hidden()
        await expect(question).to_contain_text("Send AND MILK?")
        await visit.page.get_by_role("button", name="Start over").click()
        await visit.page.get_by_role("dialog").get_by_role("button", name="Start over").click()
        await expect(card).to_be_hidden()
        await visit.say("something else")
        await expect(part.filter(has_text="Questions")).to_contain_text("Send SOMETHING ELSE?")
        assert visit.problems == []
        await context.close()
