"""The demo: the registration bot in the playground and the terminal, or a scripted chat without a terminal."""

from __future__ import annotations

import sys

from stepwell import sync
from stepwell.cli.demo import page, script, terminal
from stepwell.cli.demo.bot import check_storage
from stepwell.cli.state_files import state_url
from stepwell.errors import MissingExtra

__all__ = ["run"]


def run(url: str | None, *, scripted: bool = False, port: int | None = None) -> int:
    """Chat if there is a terminal, else play the script; return the exit code."""
    if url is not None:
        sync(check_storage(url))
    if scripted or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return script.play(url)
    url = url or state_url("demo")
    try:
        return page.chat(url, port)
    except MissingExtra as error:
        print(f"The page in the browser is not available: {error}\n")
        return terminal.chat(url)
