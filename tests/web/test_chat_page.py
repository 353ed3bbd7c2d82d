"""The page of the chat in a browser, as on a phone: it shows what its agent does, also when the server is killed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.playground.browser import PATIENCE, launched
from tests.web.axe import problems
from tests.web.chats import STORY, Agent, agent_in, opened

pytestmark = pytest.mark.asyncio(loop_scope="module")
BEGUN = "Once upon a time there was"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    expect.set_options(timeout=PATIENCE * 1000)
    async with launched() as browser:
        yield browser


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Agent]:
    folder = tmp_path_factory.mktemp("agent")
    async with agent_in(folder) as agent:
        yield agent


@pytest_asyncio.fixture(loop_scope="module")
async def agent(server: Agent) -> Agent:
    server.renew()
    return server


async def say(page: Page, text: str) -> None:
    await page.get_by_role("textbox", name="Message").fill(text)
    await page.keyboard.press("Enter")


async def has(page: Page, *texts: str) -> None:
    await expect(page.locator("#list .bubble")).to_have_text(list(texts))


async def test_a_text_is_shown_while_it_is_written_and_survives_a_reload_and_a_killed_server(
    browser: Browser, agent: Agent
) -> None:
    async with opened(browser, agent, "/chat/") as page, opened(browser, agent, "/chat/") as other:
        await expect(page.locator("#empty")).to_be_visible()
        await say(page, "story")
        for each in (page, other):
            await has(each, "story", BEGUN)
            await expect(each.locator("#state")).to_have_text("Writing …")
        await page.reload()
        await has(page, "story", BEGUN)
        agent.kill()
        await expect(page.locator("#banner")).to_contain_text("The connection was lost")
        # It is sent when the server is there again.
        await say(other, "hello")
        await agent.start()
        for each in (page, other):
            await has(each, "story", BEGUN, "hello")
        agent.let("go")
        for each in (page, other):
            await has(each, "story", STORY, "hello", STORY)
            await expect(each.locator("#banner")).to_be_hidden()
            await expect(each.locator("#state")).to_be_empty()


async def test_a_person_stops_answers_questions_and_looks_at_tools_with_the_keyboard(
    browser: Browser, agent: Agent
) -> None:
    async with opened(browser, agent, "/chat/") as page:
        await say(page, "story")
        await has(page, "story", BEGUN)
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("button", name="Stop")).to_be_focused()
        await page.keyboard.press("Enter")
        await has(page, "story", f"{BEGUN} [stopped]")
        agent.let("found")
        await say(page, "look tea")
        question = page.get_by_role("group", name="Take TEA?")
        await expect(page.locator("#state")).to_have_text("Waits for an answer")
        assert await problems(page) == []
        await question.get_by_role("button", name="Yes").press("Enter")
        await expect(question).to_contain_text(f"Yes ({agent.user.title()})")
        await expect(page.locator("#list .bubble").last).to_have_text("I take TEA.")
        tool = page.locator("details")
        await tool.locator("summary").press("Enter")
        await expect(tool).to_contain_text('"found": "TEA"')
        await say(page, "name")
        await expect(page.get_by_text("Write your answer below.")).to_be_visible()
        await say(page, "Ann")
        await expect(page.locator("#list .bubble").last).to_have_text("Hello, Ann!")


async def test_a_tool_in_which_the_server_was_killed_has_an_unknown_outcome(browser: Browser, agent: Agent) -> None:
    async with opened(browser, agent, "/chat/") as page:
        await say(page, "look tea")
        tool = page.locator("details summary")
        await expect(tool).to_have_text("look_up – runs …")
        agent.kill()
        await agent.start()
        await expect(tool).to_have_text("look_up – outcome unknown")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_page_fits_a_phone_in_light_and_dark_and_shows_markup_as_text(
    browser: Browser, agent: Agent, scheme: str
) -> None:
    async with opened(browser, agent, "/chat/#other", color_scheme=scheme) as page:
        agent.let("found")
        long = "x" * 200 + "<img src=x onerror=alert(1)>"
        await say(page, f"look {long}")
        await expect(page.get_by_role("button", name="Yes")).to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert await page.locator("#list img").count() == 0
        assert await problems(page) == []
        for name in ("Yes", "No", "Send", "Stop"):
            box = await page.get_by_role("button", name=name, exact=True).bounding_box()
            assert box is not None and box["height"] >= 44
        await page.goto(f"{agent.url}/chat/#main")
        await expect(page.locator("#empty")).to_be_visible()


async def test_a_person_who_is_not_signed_in_is_told_so(browser: Browser, agent: Agent) -> None:
    async with opened(browser, agent, "/chat/") as page:
        await page.context.clear_cookies()
        await say(page, "hello")
        await expect(page.locator(".toast")).to_have_text("You are not signed in.")
        await expect(page.get_by_role("textbox", name="Message")).to_have_value("hello")
        await page.reload()
        await expect(page.get_by_role("heading")).to_have_text("Not signed in")
