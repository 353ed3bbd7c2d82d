"""The oldest supported pyTelegramBotAPI passes the same tests as the newest, and an older one is named."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from stepwell import _optional
from stepwell.adapters.telebot import MINIMUM
from stepwell.errors import ExtraTooOld

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.skipif(os.environ.get("STEPWELL_DOSE") != "large", reason="set STEPWELL_DOSE=large to run it")
def test_the_oldest_release_passes_too() -> None:
    # Cached beside the environment for the next run.
    folder = Path(sys.prefix) / "oldest" / f"telebot-{MINIMUM}"
    if not folder.exists():
        wanted = f"pyTelegramBotAPI=={MINIMUM}.0"
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), wanted], check=True)
    tests = sorted(map(str, (ROOT / "tests" / "adapters").glob("test_telebot_*.py")))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *(path for path in tests if not path.endswith("_lowest.py"))],
        env={**os.environ, "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}", "STEPWELL_DOSE": ""},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]


def test_the_extra_requires_the_oldest_tested_release() -> None:
    assert f'telebot = ["pyTelegramBotAPI>={MINIMUM}"]' in (ROOT / "pyproject.toml").read_text()


def test_an_older_release_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def require(found: str) -> None:
        monkeypatch.setattr(metadata, "version", {"pyTelegramBotAPI": found}.__getitem__)
        _optional.require("telebot", "telebot", distribution="pyTelegramBotAPI", minimum=MINIMUM)

    with pytest.raises(ExtraTooOld, match=r"pyTelegramBotAPI 4\.25\.0 is too old, at least 4\.26 is required"):
        require("4.25.0")
    require("4.26.0")
