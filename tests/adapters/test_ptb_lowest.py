"""The oldest supported python-telegram-bot passes the same tests as the newest, and others are named."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from stepwell import _optional
from stepwell.adapters.ptb import BELOW, MINIMUM
from stepwell.errors import ExtraTooOld

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.skipif(os.environ.get("STEPWELL_DOSE") != "large", reason="set STEPWELL_DOSE=large to run it")
def test_the_oldest_release_passes_too() -> None:
    # Cached beside the environment for the next run.
    folder = Path(sys.prefix) / "oldest" / f"ptb-{MINIMUM}"
    if not folder.exists():
        wanted = f"python-telegram-bot[job-queue,callback-data]=={MINIMUM}"
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), wanted], check=True)
    tests = sorted(map(str, (ROOT / "tests" / "adapters").glob("test_ptb_*.py")))
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
