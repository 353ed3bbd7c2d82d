"""Storage URLs for the commands: the default file, the location as users see it, and a check before the start."""

from __future__ import annotations

import os
import sys
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from stepwell import open_storage
from stepwell.errors import UsageError

__all__ = ["check_storage", "history_path", "is_in_memory", "place_of", "state_url"]


def state_url(name: str) -> str:
    """Return the URL of an SQLite file in the user's state directory, and create the directory."""
    return f"sqlite:///{quote((_state_folder() / f'{name}.db').as_posix())}"


def history_path(name: str, url: str) -> Path | None:
    """Return the file for the chats of a bot with a storage.

    ``None`` for a storage that ends with its process, and if the state directory cannot be created.
    """
    if is_in_memory(url):
        return None
    try:
        return _state_folder() / f"{name}-{sha256(url.encode()).hexdigest()[:8]}.history.json"
    except UsageError:
        return None


def _state_folder() -> Path:
    home = os.environ.get("LOCALAPPDATA") if sys.platform == "win32" else os.environ.get("XDG_STATE_HOME")
    folder = (Path(home) if home else Path.home() / ".local" / "state") / "stepwell"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot create {folder} ({error.strerror}); choose another file with --storage sqlite:///demo.db"
        ) from error
    return folder


def place_of(url: str) -> str:
    """Return the location that a storage URL names, without its password."""
    parts = urlsplit(url.removeprefix("sealed+"))
    if parts.scheme == "sqlite":
        path = unquote(parts.path)[1:]
        home = str(Path.home())
        return f"~{path[len(home) :]}" if path.startswith(home + os.sep) else path
    return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"


def is_in_memory(url: str) -> bool:
    """Return whether the storage is in the memory of one process and ends with it."""
    return url.removeprefix("sealed+").startswith("memory:") or ":memory:" in url


async def check_storage(url: str) -> None:
    """Open the storage at a URL once, so that errors are raised here and not in the bot's process."""
    async with open_storage(url):
        pass
