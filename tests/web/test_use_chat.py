"""The real useChat of the AI SDK in a browser: no word is lost or shown twice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.playground.browser import PATIENCE, launched
from tests.web.chats import STORY, Agent, agent_in, bundle, opened

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
    (folder / "bundle").write_text(str(bundle()))
    async with agent_in(folder) as agent:
        yield agent


@pytest_asyncio.fixture(loop_scope="module")
async def agent(server: Agent) -> Agent:
    server.renew()
    return server


async def say(page: Page, text: str) -> None:
    await page.get_by_label("Message").fill(text)
    await page.keyboard.press("Enter")


async def has(page: Page, *texts: str) -> None:
    """Expect these messages, and that nothing runs."""
    await expect(page.locator("li")).to_have_text(list(texts))
    await expect(page.locator("main")).to_have_attribute("data-status", "ready")


@pytest.mark.parametrize("kind", ["", "?plain"])
async def test_a_reload_in_the_middle_of_an_answer_resumes_it(browser: Browser, agent: Agent, kind: str) -> None:
    async with opened(browser, agent, f"/{kind}") as page:
        await say(page, "story")
        await expect(page.locator(".assistant")).to_have_text(BEGUN)
        await page.reload()
        await expect(page.locator("li")).to_have_text(["story", BEGUN])
        agent.let("go")
        await has(page, "story", STORY)
        await say(page, "again")
        await has(page, "story", STORY, "again", STORY)
        await page.reload()
        await has(page, "story", STORY, "again", STORY)


@pytest.mark.parametrize("kind", ["", "?plain"])
async def test_a_server_that_is_killed_in_the_middle_continues_the_answer(
    browser: Browser, agent: Agent, kind: str
) -> None:
    async with opened(browser, agent, f"/{kind}") as page:
        await say(page, "story")
        await expect(page.locator(".assistant")).to_have_text(BEGUN)
        agent.kill()
        await page.wait_for_function("window.failures?.length")
        await agent.start()
        agent.let("go")
        await has(page, "story", STORY)


async def test_an_answer_that_ends_while_the_page_has_no_connection_is_shown(browser: Browser, agent: Agent) -> None:
    async with opened(browser, agent) as page:
        await say(page, "story")
        await expect(page.locator(".assistant")).to_have_text(BEGUN)
        await page.context.set_offline(True)
        agent.kill()
        agent.let("go")
        await agent.start()
        async with agent.client(agent.user) as client:
            while (await client.get("api/main/messages")).json()[-1]["parts"][-1]["text"] != STORY:
                pass
        await page.context.set_offline(False)
        await has(page, "story", STORY)


async def test_stop_ends_the_answer_with_its_mark(browser: Browser, agent: Agent) -> None:
    async with opened(browser, agent) as page:
        await say(page, "story")
        await expect(page.locator(".assistant")).to_have_text(BEGUN)
        await page.get_by_role("button", name="Stop").click()
        await has(page, "story", f"{BEGUN} [stopped]")


async def test_two_tabs_show_the_same_answer(browser: Browser, agent: Agent) -> None:
    async with opened(browser, agent) as one:
        await say(one, "story")
        await expect(one.locator(".assistant")).to_have_text(BEGUN)
        async with opened(browser, agent) as other:
            await expect(other.locator("li")).to_have_text(["story", BEGUN])
            agent.let("go")
            for page in (one, other):
                await has(page, "story", STORY)


async def test_a_tool_is_shown_and_its_result_approved(browser: Browser, agent: Agent) -> None:
    async with opened(browser, agent) as page:
        await say(page, "look tea")
        tool = page.locator("code").first
        await expect(tool).to_have_attribute("data-state", "input-available")
        await expect(tool).to_contain_text('tool-look_up {"args":["tea"]}')
        agent.let("found")
        await expect(tool).to_contain_text('{"found":"TEA","api_key":"•••"}')
        await expect(page.locator("code").last).to_contain_text('"question":"Take TEA?"')
        await page.get_by_role("button", name="Approve").click()
        await expect(page.locator(".text")).to_have_text(["look tea", "I look. ", "I take TEA."])
        await expect(page.locator("code").last).to_have_attribute("data-state", "output-available")
        await page.reload()
        await expect(page.locator(".text")).to_have_text(["look tea", "I look. ", "I take TEA."])
        await say(page, "look coffee")
        await page.get_by_role("button", name="Deny").click()
        await expect(page.locator(".text").last).to_have_text("I leave it.")
        await expect(page.locator("code").last).to_have_attribute("data-state", "output-denied")


async def test_an_approval_survives_a_kill_of_the_server(browser: Browser, agent: Agent) -> None:
    agent.let("found")
    async with opened(browser, agent) as page:
        await say(page, "look tea")
        await expect(page.get_by_role("button", name="Approve")).to_be_visible()
        agent.kill()
        await agent.start()
        await page.reload()
        await page.get_by_role("button", name="Approve").click()
        await expect(page.locator(".text")).to_have_text(["look tea", "I look. ", "I take TEA."])
        assert (agent.folder / "calls").read_text() == "tea\n"


async def test_a_reply_and_a_choice_of_three_answer_questions(browser: Browser, agent: Agent) -> None:
    async with opened(browser, agent) as page:
        await say(page, "name")
        await expect(page.locator("code")).to_contain_text("What is your name?")
        await say(page, "Ann")
        await expect(page.locator("li").last).to_have_text("Hello, Ann!")
        await say(page, "colour")
        await page.get_by_role("button", name="Last").click()
        await expect(page.locator("li").last).to_contain_text("It is Blue.")


async def test_a_turn_that_fails_says_so_and_the_chat_goes_on(browser: Browser, agent: Agent) -> None:
    async with opened(browser, agent) as page:
        await say(page, "fail")
        await expect(page.locator(".assistant")).to_contain_text("Sorry, something went wrong")
        await say(page, "hello")
        await expect(page.locator(".assistant").last).to_have_text(STORY)
        problems: Any = await page.evaluate("window.failures ?? []")
        assert problems == []
