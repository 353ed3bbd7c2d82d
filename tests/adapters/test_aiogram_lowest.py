"""The oldest supported aiogram passes the same tests as the newest."""

from __future__ import annotations

import os

import pytest

from stepwell.adapters.aiogram import MINIMUM
from tests.adapters.oldest import ROOT, check_oldest


@pytest.mark.skipif(os.environ.get("STEPWELL_DOSE") != "large", reason="set STEPWELL_DOSE=large to run it")
def test_the_oldest_release_passes_too() -> None:
    tests = [ROOT / "tests" / "adapters" / f"test_aiogram_{name}.py" for name in ("storage", "setup", "examples")]
    check_oldest(f"aiogram-{MINIMUM}", f"aiogram=={MINIMUM}.0", tests)


def test_the_extra_requires_the_oldest_tested_release() -> None:
    assert f'aiogram = ["aiogram>={MINIMUM}"]' in (ROOT / "pyproject.toml").read_text()
