"""The pages of the cookbook show the files of its bots: ``python -m tests.docs.cookbook`` writes them there."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.page import ROOT

__all__ = ["BOTS", "page_of", "with_code"]

BOTS = sorted(path for path in (ROOT / "examples" / "cookbook").glob("*.py") if path.stem != "__init__")


def page_of(bot: Path) -> Path:
    """Return the page of a bot."""
    return ROOT / "docs" / "cookbook" / f"{bot.stem}.md"


def with_code(bot: Path) -> str:
    """Return the page of a bot with the bot's file in it."""
    block = re.compile(rf'(^```python title="{bot.name}"\n).*?(^```$)', re.MULTILINE | re.DOTALL)
    page, count = block.subn(lambda found: f"{found[1]}{bot.read_text()}{found[2]}", page_of(bot).read_text())
    assert count == 1, f"{page_of(bot).name} has no snippet with the title {bot.name}"
    return page


if __name__ == "__main__":
    for each in BOTS:
        page_of(each).write_text(with_code(each))
