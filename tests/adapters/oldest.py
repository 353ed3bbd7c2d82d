"""Runs tests of an adapter with the oldest supported release of its framework."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def check_oldest(name: str, requirement: str, tests: Iterable[Path]) -> None:
    """Install a release, beside the environment and once, and require that the tests pass with it."""
    folder = Path(sys.prefix) / "oldest" / name
    if not folder.exists():
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), requirement]
        subprocess.run(install, check=True)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *map(str, tests)],
        env={**os.environ, "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}", "STEPWELL_DOSE": ""},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]


def files_of(adapter: str) -> list[Path]:
    """Return the tests of an adapter, except those of its oldest release."""
    found = sorted((ROOT / "tests" / "adapters").glob(f"test_{adapter}_*.py"))
    return [path for path in found if not path.name.endswith("_lowest.py")]
