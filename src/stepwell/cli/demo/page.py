"""The chat in the browser and in the terminal at the same time."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from stepwell import StepwellError, sync
from stepwell.cli.demo.bot import bot_file, bot_path, dies_with_its_process, place_of, say, shown, tell
from stepwell.cli.demo.terminal import dim
from stepwell.cli.play import free_port
from stepwell.record import State

if TYPE_CHECKING:
    from stepwell.playground.play import Playground

__all__ = ["chat"]

USER = 42
#: Typed in the terminal, prints a link for another browser.
LINK = "/link"


def chat(url: str, port: int | None = None) -> int:
    """Start the playground with the registration bot, and read messages from the terminal until Ctrl-C or Ctrl-D."""
    # Imported here because only the page needs the playground extra.
    from stepwell.playground.play import Playground

    play = Playground(bot_path(), storage=url, place=place_of(url), port=free_port() if port is None else port)
    try:
        sync(play.__aenter__())
        if not sync(play.ready()):
            raise StepwellError("the bot did not start:\n" + "\n".join(play.output))
        _introduce(play, url)
        while True:
            print()
            # Without readline, which turns the terminal's echo off: after kill -9 it would stay off.
            text = input("you   ").strip()
            if text == LINK:
                print(f"\n  {play.url}", flush=True)
            elif text:
                _exchange(play, text)
    except (EOFError, KeyboardInterrupt):
        print()
        tell("Bye.")
        return 0
    finally:
        # Ignore a second Ctrl-C, which would leave the bot's process running.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sync(play.__aexit__(None, None, None))


def _introduce(play: Playground, url: str) -> None:
    tell(f"The bot is {bot_file()}; your conversation is stored in {place_of(url)}.")
    print(f"\n  {play.url}\n", flush=True)
    tell("Open this link: the chat is on the left, the bot's state on the right. Try this:")
    tell("- /register, and answer the bot")
    tell("- in the middle of it: Restart the bot, Repeat last update, Send 10 messages")
    if not dies_with_its_process(url):
        tell(f"- kill this process (kill -9 {os.getpid()}) and start it again: the conversation continues")
    tell("Or chat here; the page shows it too. /register starts, /cancel stops, Ctrl-D exits.")
    tell(f"The link works in one browser; {LINK} prints another one.")
    record = sync(play.record(USER))
    if record is not None:
        tell("You have an open conversation:")
        dim(_line(record))


def _exchange(play: Playground, text: str) -> None:
    try:
        text.encode()
        say("bot", sync(play.person(str(USER), USER).ask(text)))
        dim(_line(sync(play.record(USER))))
    except (StepwellError, UnicodeEncodeError, TimeoutError) as error:
        # An error with one message must not end the chat.
        say("error", str(error))


def _line(record: dict[str, Any] | None) -> str:
    return shown(None if record is None else State(record["flow"], record["state"], record["data"]))
