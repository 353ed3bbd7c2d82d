"""The demo: the registration bot in the playground and the terminal, or a scripted chat."""

from __future__ import annotations

import sys

from stepwell import sync
from stepwell.cli.demo import chat, script
from stepwell.cli.storage_url import check_storage, state_url

__all__ = ["run"]


def run(url: str | None, *, scripted: bool = False, port: int | None = None) -> int:
    """Chat if there is a terminal, else play the script; return the exit code."""
    if url is not None:
        sync(check_storage(url))
    if scripted or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return script.play(url)
    return chat.run(url or state_url("demo"), port)
