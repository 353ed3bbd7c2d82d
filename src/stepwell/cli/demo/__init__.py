"""The demo: the registration bot in a terminal, or a scripted chat with it where there is none."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.parse import quote

from stepwell.cli.demo import script, terminal
from stepwell.errors import UsageError

__all__ = ["run"]


def run(url: str | None, *, scripted: bool = False) -> int:
    """Chat if there is a terminal to chat in, else play the script; the exit code."""
    if scripted or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return script.play(url)
    return terminal.chat(url or _default_url())


def _default_url() -> str:
    """A file where programs keep what they are in the middle of."""
    home = os.environ.get("LOCALAPPDATA") if sys.platform == "win32" else os.environ.get("XDG_STATE_HOME")
    folder = (Path(home) if home else Path.home() / ".local" / "state") / "stepwell"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be made ({error.strerror}); say where with --storage sqlite:///demo.db"
        ) from error
    return f"sqlite:///{quote((folder / 'demo.db').as_posix())}"
