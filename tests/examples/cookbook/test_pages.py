"""The cookbook has ten bots, and each has a page with its file and its picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.botfile import defines_router
from tests.docs.cookbook import BOTS, page_of, with_code
from tests.docs.page import ROOT

INDEX = (ROOT / "docs" / "cookbook" / "index.md").read_text()


def name_of(bot: Path) -> str:
    return bot.stem


def test_there_are_ten_bots() -> None:
    assert len(BOTS) == 10
    assert "cookbook/index.md" in (ROOT / "docs" / "llms.txt").read_text()


@pytest.mark.parametrize("bot", BOTS, ids=name_of)
def test_a_bot_is_short_and_runs_by_stepwell_run_and_its_page_shows_it_as_it_is(bot: Path) -> None:
    assert defines_router(bot)
    assert len(bot.read_text().splitlines()) <= 120
    assert page_of(bot).read_text() == with_code(bot), "run: python -m tests.docs.cookbook"


@pytest.mark.parametrize("bot", BOTS, ids=name_of)
def test_a_bot_has_a_picture_on_its_page_and_in_the_index(bot: Path) -> None:
    picture = f"../images/cookbook-{bot.stem}.png"
    assert (page_of(bot).parent / picture).exists(), "run: .venv/bin/python docs/images/cookbook.py"
    assert picture in page_of(bot).read_text()
    assert picture in INDEX
    assert f"stepwell play {bot.name}" in page_of(bot).read_text()
    assert f"stepwell play {bot.name}" in bot.read_text()
