"""The oldest supported pyTelegramBotAPI passes the same tests as the newest, and an older one is named."""

from __future__ import annotations

import os
from importlib import metadata

import pytest

from stepwell import _optional
from stepwell.adapters.telebot import MINIMUM
from stepwell.errors import ExtraTooOld
from tests.adapters.oldest import ROOT, check_oldest, files_of


@pytest.mark.skipif(os.environ.get("STEPWELL_DOSE") != "large", reason="set STEPWELL_DOSE=large to run it")
def test_the_oldest_release_passes_too() -> None:
    check_oldest(f"telebot-{MINIMUM}", f"pyTelegramBotAPI=={MINIMUM}.0", files_of("telebot"))


def test_the_extra_requires_the_oldest_tested_release() -> None:
    assert f'telebot = ["pyTelegramBotAPI>={MINIMUM}"]' in (ROOT / "pyproject.toml").read_text()


def test_an_older_release_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def require(found: str) -> None:
        monkeypatch.setattr(metadata, "version", {"pyTelegramBotAPI": found}.__getitem__)
        _optional.require("telebot", "telebot", distribution="pyTelegramBotAPI", minimum=MINIMUM)

    with pytest.raises(ExtraTooOld, match=r"pyTelegramBotAPI 4\.25\.0 is too old, at least 4\.26 is required"):
        require("4.25.0")
    require("4.26.0")
