"""The chat with the bot in a terminal."""

from __future__ import annotations

import os
import sys

from stepwell import StepwellError, sync
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
from stepwell.fsm import Router

__all__ = ["chat", "dim"]

USER = 42


def chat(url: str) -> int:
    """Read messages from the terminal until Ctrl-C or Ctrl-D."""
    router = make_router(url)
    assert router.fsm is not None
    try:
        record = record_of(router, USER)
        tell(f"The bot is {bot_file()}; your conversation is stored in {place_of(url)}.")
        tell("/register starts, /cancel stops, Ctrl-D exits.")
        if not dies_with_its_process(url):
            tell(f"Kill this process (kill -9 {os.getpid()}) and start it again: the conversation continues.")
        if record is not None:
            tell("You have an open conversation:")
            dim(shown(record))
        while True:
            print()
            # Without readline, which turns the terminal's echo off: after kill -9 it would stay off.
            text = input("you   ").strip()
            if text:
                _answer(router, text)
    except (EOFError, KeyboardInterrupt):
        print()
        tell("Bye.")
        return 0
    finally:
        sync(router.fsm.storage.close())


def _answer(router: Router, text: str) -> None:
    try:
        for call in router.handle_sync(message(text, USER)):
            say("bot", call["text"])
        dim(shown(record_of(router, USER)))
    except StepwellError as error:
        # An error with one message must not end the chat.
        say("error", str(error))


def dim(text: str) -> None:
    """Print a line in a dim colour."""
    colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    print("\x1b[2m" if colours else "", end="")
    say("", text)
    print("\x1b[0m" if colours else "", end="", flush=True)
