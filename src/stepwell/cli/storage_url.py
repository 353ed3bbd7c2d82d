"""Storage URLs for the commands: the default file, the location as users see it, and a check before the start."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from stepwell import open_storage
from stepwell.errors import UsageError

__all__ = ["check_storage", "is_in_memory", "place_of", "state_url"]


def state_url(name: str) -> str:
    """Return the URL of an SQLite file in the user's state directory, and create the directory."""
    home = os.environ.get("LOCALAPPDATA") if sys.platform == "win32" else os.environ.get("XDG_STATE_HOME")
    folder = (Path(home) if home else Path.home() / ".local" / "state") / "stepwell"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot create {folder} ({error.strerror}); choose another file with --storage sqlite:///demo.db"
        ) from error
    return f"sqlite:///{quote((folder / f'{name}.db').as_posix())}"


def place_of(url: str) -> str:
    """Return the location that a storage URL names, without its password."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        path = unquote(parts.path)[1:]
        home = str(Path.home())
        return f"~{path[len(home) :]}" if path.startswith(home + os.sep) else path
    return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"


def is_in_memory(url: str) -> bool:
    """Return whether the storage is in the memory of one process and ends with it."""
    return url.startswith("memory:") or ":memory:" in url


async def check_storage(url: str) -> None:
    """Open the storage at a URL once, so that errors are raised here and not in the bot's process."""
    async with open_storage(url):
        pass
