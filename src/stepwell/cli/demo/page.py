"""The chat in the browser, and in the terminal at the same time."""

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


def chat(url: str, port: int | None = None) -> int:
    """Open the playground with the registration bot, and take messages from the keyboard until Ctrl-C or Ctrl-D."""
    # Not above: the page needs an extra, the rest of the demo does not.
    from stepwell.playground.play import Playground

    play = Playground(bot_path(), storage=url, place=place_of(url), port=free_port() if port is None else port)
    try:
        sync(play.__aenter__())
        if not sync(play.ready()):
            raise StepwellError("the bot did not start:\n" + "\n".join(play.output))
        _introduce(play, url)
        while True:
            print()
            # Without readline: it turns off the echo of the terminal, and kill -9 would leave it off.
            text = input("you   ").strip()
            if text:
                _exchange(play, text)
    except (EOFError, KeyboardInterrupt):
        print()
        tell("Bye.")
        return 0
    finally:
        # A second Ctrl-C must not leave the bot's process behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sync(play.__aexit__(None, None, None))


def _introduce(play: Playground, url: str) -> None:
    tell(f"The bot is {bot_file()}; your conversation is kept in {place_of(url)}.")
    print(f"\n  {play.url}\n", flush=True)
    tell("Open this address: chat on the left, the bot's state moving on the right. Try this:")
    tell("- /register, and answer the bot")
    tell("- in the middle of it: Restart the bot, Send it twice, Send ten at once")
    if not dies_with_its_process(url):
        tell(f"- Kill me (kill -9 {os.getpid()}) and start me again: the conversation goes on.")
    tell("Or chat right here, the page shows it too. /register begins, /cancel stops, Ctrl-D leaves.")
    record = sync(play.record(USER))
    if record is not None:
        tell("You are in the middle of one:")
        dim(_line(record))


def _exchange(play: Playground, text: str) -> None:
    try:
        text.encode()
        say("bot", sync(play.person(str(USER), USER).ask(text)))
        dim(_line(sync(play.record(USER))))
    except (StepwellError, UnicodeEncodeError, TimeoutError) as error:
        # What went wrong with one message must not end the conversation.
        say("error", str(error))


def _line(record: dict[str, Any] | None) -> str:
    return shown(None if record is None else State(record["flow"], record["state"], record["data"]))
