"""The scripted chat: checked, and with the bot killed in the middle of it."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stepwell import sync
from stepwell.cli.demo.bot import (
    bot_file,
    dies_with_its_process,
    make_router,
    message,
    place_of,
    record_of,
    say,
    shown,
    tell,
)
from stepwell.cli.demo.process import DemoProcess
from stepwell.fsm import Router

__all__ = ["play"]

SCRIPT = [
    ("/register", "What's your name?"),
    ("Alice", "Got it, Alice! What's your email?"),
    ("alice@example.com", "Please confirm."),
    ("yes", "Registered! Welcome, Alice!"),
]
#: The bot is killed before this message.
KILLED_BEFORE = "alice@example.com"

Handle = Callable[[dict[str, Any]], list[dict[str, Any]]]


def play(url: str | None) -> int:
    """Play the chat, show the record after each message, and check it; 0 if all is as it should be."""
    if url is not None:
        return _play(url)
    with tempfile.TemporaryDirectory(prefix="stepwell-") as folder:
        return _play(f"sqlite:///{quote((Path(folder) / 'demo.db').as_posix())}")


def _play(url: str) -> int:
    watcher = make_router(url)
    assert watcher.fsm is not None
    tell(f"The bot is {bot_file()}; the conversation is kept in {place_of(url)}.")
    print()
    # Somebody new: whoever else talks to this bot over this storage is left alone.
    user = random.randrange(10**9, 10**12)
    try:
        record_of(watcher, user)
        good = _talk(watcher, user) if dies_with_its_process(url) else _talk_and_kill(url, watcher, user)
    finally:
        sync(watcher.fsm.storage.close())
    tell("Everything as it should be." if good else "An answer was not what it should be.")
    return 0 if good else 1


def _talk(router: Router, user: int) -> bool:
    tell("Memory ends with its process, so nothing is killed here.")
    print()
    good = True
    for said, expected in SCRIPT:
        good = _exchange(router.handle_sync, router, user, said, expected) and good
    return good


def _talk_and_kill(url: str, watcher: Router, user: int) -> bool:
    good = True
    worker = DemoProcess(url)
    try:
        for said, expected in SCRIPT:
            if said == KILLED_BEFORE:
                killed, worker = worker.kill(), DemoProcess(url)
                tell(f"kill -9 {killed}: the bot is dead. Another one starts, process {worker.pid}.")
                print()
            good = _exchange(worker.handle, watcher, user, said, expected) and good
    finally:
        worker.kill()
    return good


def _exchange(handle: Handle, watcher: Router, user: int, said: str, expected: str) -> bool:
    say("you", said)
    answers = [call["text"] for call in handle(message(said, user))]
    for answer in answers:
        say("bot", answer)
    record = record_of(watcher, user)
    say("", shown(record))
    print(flush=True)
    return answers == [expected] and (record is None) == (said == "yes")
