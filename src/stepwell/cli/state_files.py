"""SQLite files in the user's state directory, for the commands' own conversations."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.parse import quote

from stepwell.errors import UsageError

__all__ = ["state_url"]


def state_url(name: str) -> str:
    """Return the URL of an SQLite file of this name, and create its directory."""
    home = os.environ.get("LOCALAPPDATA") if sys.platform == "win32" else os.environ.get("XDG_STATE_HOME")
    folder = (Path(home) if home else Path.home() / ".local" / "state") / "stepwell"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot create {folder} ({error.strerror}); choose another file with --storage sqlite:///demo.db"
        ) from error
    return f"sqlite:///{quote((folder / f'{name}.db').as_posix())}"
