"""The chat in the terminal, and at the same time in the browser if the playground extra is installed."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable

from stepwell import State, StepwellError, sync
from stepwell.cli.console import dim, say, tell
from stepwell.cli.demo.bot import bot_path, format_record, introduce, make_router, message, record_of
from stepwell.cli.storage_url import history_path, is_in_memory, place_of
from stepwell.errors import MissingExtra

__all__ = ["run"]

USER = 42
#: Typed in the terminal, prints a link for another browser.
LINK = "/link"


def run(url: str, port: int | None = None) -> int:
    """Chat until Ctrl-C or Ctrl-D, and return the exit code."""
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        try:
            _chat_with_page(url, port)
        except MissingExtra as error:
            print(f"The page in the browser is not available: {error}\n")
            _chat_without_page(url)
    print()
    tell("Bye.")
    return 0


def _chat_with_page(url: str, port: int | None) -> None:
    # Imported here because only the page needs the playground extra.
    from stepwell.playground.play import Playground

    play = Playground(
        bot_path(),
        storage=url,
        place=place_of(url),
        port=port,
        history=history_path("demo", url),
    )

    def answers(text: str) -> list[str]:
        if text == LINK:
            print(f"\n  {play.url}", flush=True)
            return []
        text.encode()
        return [sync(play.person(str(USER), USER).ask(text))]

    def record() -> State | None:
        found = sync(play.record(USER))
        return None if found is None else State(found["flow"], found["state"], found["data"])

    try:
        sync(play.__aenter__())
        if not sync(play.ready()):
            raise StepwellError("the bot did not start:\n" + "\n".join(play.output))
        introduce(url)
        print(f"\n  {play.url}\n", flush=True)
        tell("Open this link: the chat is on the left, the bot's state on the right. Try this:")
        tell("- /register, and answer the bot")
        tell("- in the middle of it: Restart the bot, Repeat last update, Send 10 messages")
        if not is_in_memory(url):
            tell(f"- kill this process (kill -9 {os.getpid()}) and start it again: the conversation continues")
        tell("Or chat here; the page shows it too. /register starts, /cancel stops, Ctrl-D exits.")
        tell(f"The link works in one browser; {LINK} prints another one.")
        _converse(answers, record)
    finally:
        # Ignore a second Ctrl-C, which would leave the bot's process running.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sync(play.__aexit__(None, None, None))


def _chat_without_page(url: str) -> None:
    router = make_router(url)
    assert router.fsm is not None
    try:
        introduce(url)
        tell("/register starts, /cancel stops, Ctrl-D exits.")
        if not is_in_memory(url):
            tell(f"Kill this process (kill -9 {os.getpid()}) and start it again: the conversation continues.")
        _converse(
            lambda text: [call["text"] for call in router.handle_sync(message(text, USER))],
            lambda: record_of(router, USER),
        )
    finally:
        sync(router.fsm.storage.close())


def _converse(answers: Callable[[str], list[str]], record: Callable[[], State | None]) -> None:
    """Read messages from the terminal; print the bot's answers and the record after each."""
    known = record()
    if known is not None:
        tell("You have an open conversation:")
        dim(format_record(known))
    while True:
        print()
        # Without readline, which turns the terminal's echo off: after kill -9 it would stay off.
        text = input("you   ").strip()
        if not text:
            continue
        try:
            said = answers(text)
            for answer in said:
                say("bot", answer)
            if said:
                dim(format_record(record()))
        except (StepwellError, UnicodeEncodeError, TimeoutError) as error:
            # An error with one message must not end the chat.
            say("error", str(error))
