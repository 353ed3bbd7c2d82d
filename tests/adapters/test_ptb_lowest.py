"""The oldest supported python-telegram-bot passes the same tests as the newest, and others are named."""

from __future__ import annotations

import os
from importlib import metadata

import pytest

from stepwell import _optional
from stepwell.adapters.ptb import BELOW, MINIMUM
from stepwell.errors import ExtraTooOld
from tests.adapters.oldest import ROOT, check_oldest, files_of


@pytest.mark.skipif(os.environ.get("STEPWELL_DOSE") != "large", reason="set STEPWELL_DOSE=large to run it")
def test_the_oldest_release_passes_too() -> None:
    check_oldest(f"ptb-{MINIMUM}", f"python-telegram-bot[job-queue,callback-data]=={MINIMUM}", files_of("ptb"))


def test_the_extra_requires_the_oldest_tested_release() -> None:
    assert f'ptb = ["python-telegram-bot>={MINIMUM},<{BELOW}"]' in (ROOT / "pyproject.toml").read_text()


def test_another_release_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def require(found: str) -> None:
        monkeypatch.setattr(metadata, "version", {"python-telegram-bot": found}.__getitem__)
        _optional.require("telegram", "ptb", distribution="python-telegram-bot", minimum=MINIMUM, below=BELOW)

    with pytest.raises(ExtraTooOld, match=r"python-telegram-bot 21\.11 is too old, at least 22\.0 is required"):
        require("21.11")
    require("22.0")
    require("22.99")
    with pytest.warns(
        UserWarning, match=r"tested with python-telegram-bot 22\.0 and newer, below 23; 23\.1 is installed"
    ):
        require("23.1")
