"""The oldest supported aiogram passes the same tests as the newest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepwell.adapters.aiogram import MINIMUM

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.skipif(os.environ.get("STEPWELL_DOSE") != "large", reason="set STEPWELL_DOSE=large to run it")
def test_the_oldest_release_passes_too() -> None:
    # Cached beside the environment for the next run.
    folder = Path(sys.prefix) / "oldest" / f"aiogram-{MINIMUM}"
    if not folder.exists():
        wanted = f"aiogram=={MINIMUM}.0"
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), wanted], check=True)
    tests = [str(ROOT / "tests" / "adapters" / f"test_aiogram_{name}.py") for name in ("storage", "setup", "examples")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *tests],
        env={**os.environ, "PYTHONPATH": str(folder), "STEPWELL_DOSE": ""},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]


def test_the_extra_requires_the_oldest_tested_release() -> None:
    assert f'aiogram = ["aiogram>={MINIMUM}"]' in (ROOT / "pyproject.toml").read_text()
