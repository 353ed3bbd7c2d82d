"""The bot of the demo, loaded from ``examples/registration.py``."""

from __future__ import annotations

import os
import textwrap
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from shutil import get_terminal_size
from typing import Any
from urllib.parse import unquote, urlsplit

from stepwell import State, open_storage, sync
from stepwell.fsm import Router, Update

__all__ = [
    "bot_file",
    "bot_path",
    "check_storage",
    "dies_with_its_process",
    "make_router",
    "message",
    "place_of",
    "record_of",
    "say",
    "shown",
    "tell",
]

_HERE = Path(__file__).parent
# In a wheel it is beside this file, in a checkout among the examples.
_FILES = (_HERE / "registration.py", _HERE.parents[3] / "examples" / "registration.py")


def make_router(url: str) -> Router:
    """Return the bot's router over the storage at a URL."""
    spec = spec_from_file_location("registration", bot_path())
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    router: Router = module.make_router(url)
    return router


def bot_file() -> str:
    """Return the path of the bot's file, relative to the working directory if possible."""
    path = bot_path()
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def message(text: str, user: int, update_id: int | None = None) -> dict[str, Any]:
    """Return a message from a private chat as Telegram delivers it."""
    person = {"id": user, "is_bot": False, "first_name": "You"}
    chat = {"id": user, "first_name": "You", "type": "private"}
    update = {} if update_id is None else {"update_id": update_id}
    return {**update, "message": {"message_id": 1, "from": person, "chat": chat, "date": 0, "text": text}}


def record_of(router: Router, user: int) -> State | None:
    """Return the record of a user."""
    fsm = router.fsm
    assert fsm is not None
    return sync(fsm.storage.get_state(fsm.bot, fsm.key.extract(Update.of(message("", user)))))


def shown(record: State | None) -> str:
    """Format a record as one line."""
    if record is None:
        return "no record"
    return f"{record.flow} / {record.state}   {record.data}" if record.data else f"{record.flow} / {record.state}"


def place_of(url: str) -> str:
    """Return the location that a storage URL names, without its password."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        path = unquote(parts.path)[1:]
        home = str(Path.home())
        return f"~{path[len(home) :]}" if path.startswith(home + os.sep) else path
    return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"


async def check_storage(url: str) -> None:
    """Open the storage at a URL once, so that errors are raised here and not in the bot's process."""
    async with open_storage(url):
        pass


def dies_with_its_process(url: str) -> bool:
    """Return whether the storage is in the memory of one process."""
    return url.startswith("memory:") or ":memory:" in url


def say(who: str, text: str) -> None:
    """Print one message of the chat, wrapped and indented in a narrow window."""
    print(textwrap.fill(text, _width(), initial_indent=f"{who:<6}", subsequent_indent=" " * 6), flush=True)


def tell(text: str) -> None:
    """Print a message of the program itself."""
    print(textwrap.fill(text, _width(), break_on_hyphens=False), flush=True)


def _width() -> int:
    return max(get_terminal_size().columns - 1, 30)


def bot_path() -> Path:
    """Return the path of the bot's file."""
    return next(path for path in _FILES if path.exists())
