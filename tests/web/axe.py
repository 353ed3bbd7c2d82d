"""The check of a page for people who use a keyboard or a screen reader, with axe-core."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from playwright.async_api import Page

__all__ = ["problems"]


@cache
def _source() -> str:
    return (files("axe_playwright_python") / "axe.min.js").read_text()


async def problems(page: Page, *rules: str) -> list[str]:
    """Return what axe finds in a page, by all rules or by some: impact, rule, and the first element."""
    if not await page.evaluate("'axe' in window"):
        # Not add_script_tag: the policy of the page forbids it.
        await page.evaluate(_source())
    options = {"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else {})}
    found = (await page.evaluate("options => axe.run(options)", options))["violations"]
    return [f"{each['impact']} {each['id']}: {each['nodes'][0]['html'][:200]}" for each in found]
