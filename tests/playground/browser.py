"""A real browser: the system's Chromium, else playwright's own, else Debian's if it may be installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from playwright.async_api import Browser, async_playwright

from tests.servers.packages import lock

__all__ = ["launched"]

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: Chromium makes no requests except those of the page under test.
FLAGS = [
    "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
HOW = (
    "these tests need Chromium; type one of:\n"
    "  sudo apt-get install -y chromium\n"
    f"  {sys.executable} -m playwright install --with-deps chromium"
)


@asynccontextmanager
async def launched() -> AsyncIterator[Browser]:
    """A running browser."""
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    flags = [*FLAGS, "--no-sandbox"] if root else FLAGS
    async with async_playwright() as driver:
        with lock():
            path = _system() or _own(driver.chromium.executable_path) or _installed(root)
        browser = await driver.chromium.launch(executable_path=path, args=flags)
        try:
            yield browser
        finally:
            await browser.close()


def _system() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def _own(path: str) -> str | None:
    if not Path(path).exists():
        _run([sys.executable, "-m", "playwright", "install", "chromium"], "playwright's Chromium is fetched, once ...")
    return path if Path(path).exists() else None


def _installed(root: bool) -> str:
    apt = shutil.which("apt-get")
    if root and apt:
        env = {"DEBIAN_FRONTEND": "noninteractive"}
        _run([apt, "update", "-qq"], "Debian's chromium is installed, once ...", env)
        _run([apt, "install", "-y", "-qq", "chromium"], "", env)
    found = _system()
    if found is None:
        raise RuntimeError(HOW)
    return found


def _run(command: list[str], saying: str, env: dict[str, str] | None = None) -> None:
    if saying:
        print(f"\n{saying}", file=sys.__stderr__, flush=True)
    # The caller checks whether the browser exists afterwards.
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(command, check=False, capture_output=True, env={**os.environ, **(env or {})}, timeout=300)
