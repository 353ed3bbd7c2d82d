"""``stepwell botapi``: a local Bot API for bots in any language."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import threading
from typing import TYPE_CHECKING

from stepwell.botapi import NotPossible, WorldEvent, buttons_of
from stepwell.cli import signals
from stepwell.cli.arguments import add_hosts, port
from stepwell.cli.command import Commands
from stepwell.cli.console import say, tell
from stepwell.engine import require
from stepwell.errors import InvalidOption, UsageError

if TYPE_CHECKING:
    from stepwell.botapi import Person

__all__ = ["add"]

#: The port of Telegram's own Bot API server.
PORT = 8081
#: The user who types in the terminal.
USER = 42


def add(commands: Commands) -> None:
    """Add the command."""
    about = "serve a local Bot API, to run and test a bot in any language without Telegram"
    parser: argparse.ArgumentParser = commands.add_parser(
        "botapi",
        help=about,
        description=f"{about[0].upper()}{about[1:]}. Lines that you type are messages to the bot.",
        epilog="example: stepwell botapi --bot my_bot=123456:secret",
    )
    parser.set_defaults(action=_botapi)
    parser.add_argument(
        "--bot",
        metavar="NAME[=TOKEN]",
        action="append",
        help="a bot, with a new token by default; may be repeated (default: my_bot)",
    )
    add_hosts(parser, "bots")
    parser.add_argument("--port", type=port, default=PORT, help=f"the port (default: {PORT}; 0: a free one)")
    parser.add_argument(
        "--limits", action="store_true", help="refuse messages above Telegram's limits with 429, as Telegram does"
    )
    parser.add_argument("--outside", action="store_true", help="deliver webhooks to other machines too")


def _botapi(options: argparse.Namespace) -> int:
    for package in ("starlette", "uvicorn", "python_multipart", "httpx"):
        require(package, "botapi")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(options))
    return 0


async def _serve(options: argparse.Namespace) -> None:
    # Imported here because only this command needs the botapi extra.
    from stepwell.botapi import BotAPI

    api = BotAPI(
        host=options.host, port=options.port, hosts=tuple(options.allow_host), outside=options.outside,
        limits=options.limits,
    )  # fmt: skip
    chats: list[Person] = []
    for given in options.bot or ["my_bot"]:
        name, _, token = given.partition("=")
        if not name:
            raise InvalidOption("a bot needs a name: --bot NAME=TOKEN")
        try:
            chats.append(api.chat(api.bot(name, token=token or None), USER))
        except ValueError as error:
            raise InvalidOption(f"--bot {name}: {error}") from None
    try:
        await api.__aenter__()
    except NotPossible as error:
        raise UsageError(f"{error} (--host, --port)") from error
    try:
        tell("Serving a local Bot API. Everything is in memory.")
        print(f"\n  {api.url}\n")
        for chat in chats:
            print(f"  {chat.bot.name}  {chat.bot.token}")
        first = chats[0].bot
        print(f"\n  curl {api.url}/bot{first.token}/getMe")
        print(f"  BOT_API={api.url} BOT_TOKEN={first.token} stepwell run bot.py\n", flush=True)
        tell(
            "Give your bot a token and this address in place of https://api.telegram.org. A line that you type is a "
            f"message of user {USER}; the text of a button presses it. Ctrl-C stops the server."
        )
        api.world.watch(_print)
        _read_lines(chats)
        await signals.stopped()
    finally:
        await api.__aexit__(None, None, None)


def _print(event: WorldEvent) -> None:
    """Print a message that a bot has sent or edited, with its buttons."""
    # Imported here because only this command needs it.
    from stepwell.botapi import message_text

    message = event.body
    if event.kind not in ("message", "edited") or not message.get("from", {}).get("is_bot"):
        return
    text = message_text(message) or "(no text)"
    edited = ["(edited)"] if event.kind == "edited" else []
    buttons = [f"[{button.text}]" for button in buttons_of(message.get("reply_markup"))]
    say(f"{message['from']['first_name']} ", " ".join([*edited, text, *buttons]))


def _read_lines(chats: list[Person]) -> None:
    """Send each line of stdin to the bots, in a thread because a read blocks."""
    if sys.stdin is None:
        return
    loop = asyncio.get_running_loop()

    def read() -> None:
        # Not sys.stdin, whose lock would stop the exit of the process.
        with (
            contextlib.suppress(OSError, RuntimeError),
            open(sys.stdin.fileno(), errors="replace", closefd=False) as lines,
        ):
            for line in lines:
                asyncio.run_coroutine_threadsafe(_send(chats, line.strip()), loop)

    threading.Thread(target=read, name="stepwell-botapi-stdin", daemon=True).start()


async def _send(chats: list[Person], text: str) -> None:
    for chat in chats if text else ():
        try:
            await (chat.press(text) if text in chat.buttons else chat.send(text))
        except NotPossible as error:
            say("error", str(error))
