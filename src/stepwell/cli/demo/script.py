"""The scripted chat: kills the bot halfway, and checks every answer."""

from __future__ import annotations

import multiprocessing
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stepwell import StepwellError, sync
from stepwell.cli.console import say, tell
from stepwell.cli.demo.bot import format_record, introduce, make_router, message, record_of
from stepwell.cli.storage_url import is_in_memory
from stepwell.fsm import Router

__all__ = ["DemoProcess", "play", "serve"]

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
    """Play the chat, print the record after each message, and return 0 if every answer was as expected."""
    if url is not None:
        return _play(url)
    with tempfile.TemporaryDirectory(prefix="stepwell-") as folder:
        return _play(f"sqlite:///{quote((Path(folder) / 'demo.db').as_posix())}")


def _play(url: str) -> int:
    watcher = make_router(url)
    assert watcher.fsm is not None
    introduce(url)
    if is_in_memory(url):
        tell("The storage is in memory, so the bot is not killed.")
    print()
    # A new user, so that other conversations in this storage stay untouched.
    user = random.randrange(10**9, 10**12)
    try:
        good = _talk(url, watcher, user)
    finally:
        sync(watcher.fsm.storage.close())
    tell("All answers were as expected." if good else "An answer was not as expected.")
    return 0 if good else 1


def _talk(url: str, watcher: Router, user: int) -> bool:
    good = True
    worker = None if is_in_memory(url) else DemoProcess(url)
    try:
        for said, expected in SCRIPT:
            if worker is not None and said == KILLED_BEFORE:
                killed, worker = worker.kill(), DemoProcess(url)
                tell(f"kill -9 {killed}: the bot was killed. A new one starts as process {worker.pid}.")
                print()
            handle = watcher.handle_sync if worker is None else worker.handle
            good = _exchange(handle, watcher, user, said, expected) and good
    finally:
        if worker is not None:
            worker.kill()
    return good


def _exchange(handle: Handle, watcher: Router, user: int, said: str, expected: str) -> bool:
    say("you", said)
    answers = [call["text"] for call in handle(message(said, user))]
    for answer in answers:
        say("bot", answer)
    record = record_of(watcher, user)
    say("", format_record(record))
    print(flush=True)
    return answers == [expected] and (record is None) == (said == "yes")


class DemoProcess:
    """A process that handles one update at a time."""

    def __init__(self, url: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._updates, theirs = context.Pipe()
        # Daemonic, so that it ends with the script.
        self._process = context.Process(target=serve, args=(url, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.pid: int | None = self._process.pid

    def handle(self, update: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the bot's calls for an update."""
        try:
            self._updates.send(update)
            calls: list[dict[str, Any]] = self._updates.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            raise StepwellError(f"the bot's process {self.pid} ended with exit code {self._process.exitcode}") from None
        return calls

    def kill(self) -> int | None:
        """Kill the process without cleanup, and return its id."""
        self._process.kill()
        self._process.join()
        self._updates.close()
        return self.pid


def serve(url: str, updates: Any) -> None:
    """Handle updates from a pipe; runs in the process."""
    router = make_router(url)
    while True:
        updates.send(router.handle_sync(updates.recv()))
