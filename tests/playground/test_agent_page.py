"""An agent from an empty folder, tried in a real browser by the commands that a new user types."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.playground.browser import PATIENCE
from tests.web.axe import problems

pytestmark = pytest.mark.asyncio(loop_scope="module")


@contextmanager
def played(folder: Path) -> Iterator[str]:
    """``stepwell new`` and ``stepwell play`` in an empty folder; the link that is printed."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    environment |= {"STEPWELL_STORAGE": f"sqlite:///{folder}/agent.db", "XDG_STATE_HOME": str(folder)}
    stepwell = [sys.executable, "-m", "stepwell"]
    subprocess.run([*stepwell, "new", "agent", "helper"], cwd=folder, env=environment, check=True)
    command = [*stepwell, "play", "helper/bot.py", "--port", "0"]
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as play:
        assert play.stdout is not None
        try:
            yield next(line.strip() for line in play.stdout if "?token=" in line)
        finally:
            play.terminate()
            play.communicate()


async def say(page: Page, text: str) -> None:
    await page.get_by_role("textbox", name="Message").fill(text)
    await page.keyboard.press("Enter")


async def kill(page: Page) -> None:
    """Kill the bot's process, and wait until the next one runs."""
    await page.get_by_role("button", name="Restart the bot").click()
    await expect(page.locator("#timeline")).to_contain_text(re.compile(r"kill -9 \d+"))


async def test_an_agent_from_an_empty_folder_is_stopped_and_killed_and_approved_without_a_token(
    browser: Any, tmp_path: Path
) -> None:
    expect.set_options(timeout=PATIENCE * 1000)
    with played(tmp_path) as url:
        context = await browser.new_context(viewport={"width": 1280, "height": 800})
        context.set_default_timeout(PATIENCE * 1000)
        page = await context.new_page()
        await page.goto(url)
        last, tools = page.locator(".messages .theirs p").last, page.locator("#turn-card .part", has_text="Tools")
        # Nothing about flows, which it has not.
        await expect(page.locator(".welcome")).to_contain_text("Watch the turn")
        await expect(page.get_by_role("article", name="Flow")).to_be_hidden()
        # A stream is stopped by the button of its draft.
        await say(page, "tell me a story")
        await expect(page.locator(".draft p")).to_contain_text("On step 1 a frog")
        await page.locator(".draft").get_by_role("button", name="Stop").click()
        await expect(last).to_contain_text(re.compile(r"On step 1 a frog.*\[stopped\]$"))
        # A question survives the death of the process that asked it.
        await say(page, "cancel 7")
        await expect(last).to_have_text("Cancel order 7?")
        await kill(page)
        await page.locator(".inline").get_by_role("button", name="Yes").click()
        await expect(last).to_have_text("The tool says: order 7 is cancelled")
        await expect(page.locator("#timeline")).to_contain_text("Alice callback_query: Yes")
        # The process dies in a tool that must not run twice.
        await say(page, "order green tea")
        await expect(tools).to_contain_text("order runs at most once")
        await kill(page)
        await expect(last).to_contain_text("The tool says: The outcome of this call is unknown")
        assert await problems(page) == []
        await context.close()
