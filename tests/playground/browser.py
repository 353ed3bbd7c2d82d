"""A real browser: Debian's headless shell, else the system's Chromium, else playwright's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from playwright.async_api import Browser, async_playwright

from tests.servers.packages import found, lock

__all__ = ["PATIENCE", "launched"]

#: Seconds to wait for a page. It has to be more than the pause of a machine that is busy with other tests.
PATIENCE = 60
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: Chromium makes no requests except those of the page under test.
FLAGS = [
    "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
HOW = (
    "these tests need Chromium; type one of:\n"
    "  sudo apt-get install -y chromium-headless-shell\n"
    f"  {sys.executable} -m playwright install --with-deps chromium"
)


@asynccontextmanager
async def launched() -> AsyncIterator[Browser]:
    """A running browser."""
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    flags = [*FLAGS, "--no-sandbox"] if root else FLAGS
    async with async_playwright() as driver:
        # The shell has no windows, and needs less than half of the processor time of the whole Chromium.
        shell = found("chromium-headless-shell", "chromium-headless-shell")
        path = shell or _system() or _own(driver.chromium.executable_path)
        if path is None:
            raise RuntimeError(HOW)
        browser = await driver.chromium.launch(executable_path=path, args=flags)
        try:
            yield browser
        finally:
            await browser.close()


def _system() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def _own(path: str) -> str | None:
    with lock():
        if not Path(path).exists():
            print("\nplaywright's Chromium is fetched, once ...", file=sys.__stderr__, flush=True)
            command = [sys.executable, "-m", "playwright", "install", "chromium"]
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(command, check=False, capture_output=True, timeout=300)
    return path if Path(path).exists() else None
