"""The bot of the demo, loaded from ``examples/registration.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepwell import State, sync
from stepwell.botfile import load_router
from stepwell.cli.console import tell
from stepwell.cli.storage_url import place_of
from stepwell.fsm import Router, Update

__all__ = ["bot_path", "format_record", "introduce", "make_router", "message", "record_of"]

_HERE = Path(__file__).parent
# In a wheel it is beside this file, in a checkout among the examples.
_FILES = (_HERE / "registration.py", _HERE.parents[3] / "examples" / "registration.py")


def bot_path() -> Path:
    """Return the path of the bot's file."""
    return next(path for path in _FILES if path.exists())


def introduce(url: str) -> None:
    """Print the bot's file, relative to the working directory if possible, and the location of the records."""
    path, here = bot_path(), Path.cwd()
    file = path.relative_to(here) if path.is_relative_to(here) else path
    tell(f"The bot is {file}; the conversation is stored in {place_of(url)}.")


def make_router(url: str) -> Router:
    """Return the bot's router over the storage at a URL."""
    return load_router(bot_path(), url)


def message(text: str, user: int) -> dict[str, Any]:
    """Return a message from a private chat as Telegram delivers it."""
    person = {"id": user, "is_bot": False, "first_name": "You"}
    chat = {"id": user, "first_name": "You", "type": "private"}
    return {"message": {"message_id": 1, "from": person, "chat": chat, "date": 0, "text": text}}


def record_of(router: Router, user: int) -> State | None:
    """Return the record of a user."""
    fsm = router.fsm
    assert fsm is not None
    return sync(fsm.storage.get_state(fsm.bot, fsm.key.extract(Update.of(message("", user)))))


def format_record(record: State | None) -> str:
    """Format a record as one line."""
    if record is None:
        return "no record"
    return f"{record.flow} / {record.state}   {record.data}" if record.data else f"{record.flow} / {record.state}"
