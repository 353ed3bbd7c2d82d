"""The command line: ``stepwell`` and ``python -m stepwell``."""

from __future__ import annotations

import argparse
import errno
import functools
import io
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, TextIO

import stepwell
from stepwell.cli import demo
from stepwell.cli.arguments import add_hosts, address, port, positive
from stepwell.cli.bots import play, run
from stepwell.cli.output import NOT_FOUND_OR_CHANGED
from stepwell.cli.signals import Terminated
from stepwell.engine import displayed
from stepwell.errors import Conflict, InvalidKey, InvalidOption, UnknownScheme, UsageError
from stepwell.operate.audit import printable

__all__ = ["main"]

#: The exit code of a wrong option or argument.
WRONG_OPTION = 2
#: The commands that start a bot. They import nothing of the operator's commands.
STARTING = ("demo", "play", "run")
#: Errors of stdout. Those of a storage are ``StorageError``.
_OUTPUT_ERRORS = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    operator = not arguments or arguments[0] not in STARTING
    if not _has_streams(operator):
        return 1
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Stored text may have characters that the terminal's encoding does not have.
            stream.reconfigure(errors="backslashreplace")
    options = _parsed(_parser(operator=operator), arguments)
    try:
        code = int(options.action(options)) if "action" in options else _start(options, arguments)
        # A reader of stdout that has exited, or a full disk, is noticed here at the latest.
        sys.stdout.flush()
        return code
    except stepwell.StepwellError as error:
        # The message may quote the error of a node, or stored data.
        print("\n".join(map(printable, f"stepwell: {error}".split("\n"))), file=sys.stderr)
        if isinstance(error, InvalidOption | InvalidKey | UnknownScheme):
            return WRONG_OPTION
        return NOT_FOUND_OR_CHANGED if isinstance(error, LookupError | Conflict) else 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Terminated:
        return 128 + signal.SIGTERM
    except OSError as error:
        if error.errno not in _OUTPUT_ERRORS or error.filename is not None:
            raise
        # Discard the rest, including output that is flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            # A reader that has exited needs no message.
            print(f"stepwell: cannot write the output ({error.strerror}); it is not complete", file=sys.stderr)
        return 1


def _has_streams(operator: bool) -> bool:
    """Replace closed streams; return whether the command has the streams that it needs."""
    if sys.stderr is None:
        sys.stderr = _discarded()
    if sys.stdout is None:
        if operator:
            print("stepwell: stdout is closed, nothing was done; write > /dev/null to discard it", file=sys.stderr)
            return False
        sys.stdout = _discarded()
    return True


def _discarded() -> TextIO:
    """Return a stream whose output is discarded."""
    return Path(os.devnull).open("w")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    #: The parsers of the commands by their names.
    commands: Mapping[str, _Parser] = {}

    def error(self, message: str) -> NoReturn:
        # The message quotes the value, which may be a secret in the wrong place.
        message = _QUOTED.sub(_displayed, message)
        found = _CHOICE.search(message)
        near = _near(found[1], re.findall(r"[\w-]+", found[2])) if found else ""
        # A list of all choices would hide the right one.
        self.fail(_CHOICE.sub(r"invalid choice: '\1'", message) if near else message, near)

    def fail(self, message: str, near: str = "") -> NoReturn:
        """Print an error and exit; ``near`` is probably what the user meant."""
        hint = f"did you mean {near}? " if near else ""
        self.exit(WRONG_OPTION, f"{self.prog}: {message}; {hint}see {self.prog} --help\n")


#: A wrong choice in a message of argparse, and the choices.
_CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")
#: A value in a message of argparse.
_QUOTED = re.compile(r"""(?P<mark>['"])((?:\\.|(?!(?P=mark)).)*)(?P=mark)""")


def _displayed(found: re.Match[str]) -> str:
    shown = displayed(found[2])
    return found[0] if shown == found[2] else shown


def _near(word: str, known: Sequence[str]) -> str:
    return "".join(get_close_matches(word, known, n=1))


def _parsed(parser: _Parser, arguments: Sequence[str]) -> argparse.Namespace:
    options, rest = parser.parse_known_args(arguments)
    if rest and ("fields" not in options or any(each.startswith("-") for each in rest)):
        command = parser.commands[options.command]
        near = _near(rest[0].lstrip("-").partition("=")[0], re.findall(r" --([\w-]+)", command.format_help()))
        command.fail(f"unrecognized arguments: {' '.join(map(displayed, rest))}", near and f"--{near}")
    if rest:
        # argparse takes no more positional arguments once an option has followed them.
        options.fields += rest
    return options


def _start(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Run a command that starts a bot."""
    if options.command == "demo":
        return demo.run(options.storage, scripted=options.script, port=options.port)
    if options.command == "run":
        if not options.webhook and (options.host or options.port is not None or options.workers):
            raise UsageError("--host, --port and --workers need --webhook; a bot that polls does not listen")
        if options.webhook and options.health is not None:
            raise UsageError("--health is for a bot that polls; a webhook answers /health/ready on its own port")
        if options.reload:
            return run.reload(options.file, arguments)
        if options.webhook:
            return run.run_webhook(
                options.file,
                storage=options.storage,
                api=options.api,
                url=options.webhook,
                host=options.host or "127.0.0.1",
                port=options.port,
                workers=options.workers or 1,
                runs=options.runs,
                wait=options.wait,
            )
        return run.run(
            options.file,
            storage=options.storage,
            api=options.api,
            runs=options.runs,
            wait=options.wait,
            health=options.health,
        )
    return play.run(
        options.file,
        storage=options.storage,
        host=options.host,
        port=options.port,
        hosts=tuple(options.allow_host),
        limits=options.limits,
    )


# It takes 8 ms, and a program may call main() more than once.
@functools.cache
def _parser(*, operator: bool = True) -> _Parser:
    """Return the parser of the commands that start a bot, and of the operator's commands too by default."""
    parser = _Parser(prog="stepwell", description="Durable state for conversations and node flows.")
    parser.add_argument("--version", action="version", version=f"stepwell {stepwell.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)

    def command(name: str, about: str, example: str) -> argparse.ArgumentParser:
        added = commands.add_parser(
            name, help=about, description=f"{about[0].upper()}{about[1:]}.", epilog=f"example: {example}"
        )
        added.add_argument(
            "--storage", metavar="URL", help="the storage of the bot (default: an SQLite file; its path is printed)"
        )
        added.add_argument("--port", type=port, help="the port of the page (default: 8642, or a free one)")
        return added

    demo_command = command(
        "demo",
        "chat with a registration bot that survives kill -9, here and in the browser; "
        "without a terminal, play a scripted chat and check it",
        "stepwell demo --script",
    )
    demo_command.add_argument("--script", action="store_true", help="play the scripted chat in a terminal too")
    play_command = command(
        "play",
        "run a bot without Telegram, chat with it in the browser, and watch its state",
        "stepwell play bot.py --storage sqlite:///play.db",
    )
    play_command.add_argument(
        "file",
        help="a file with a router or make_router(storage), or any bot that reads its Bot API address from BOT_API",
    )
    add_hosts(play_command, "browsers")
    play_command.add_argument(
        "--limits", action="store_true", help="refuse messages above Telegram's limits with 429, as Telegram does"
    )
    run_command = commands.add_parser(
        "run",
        help="run a bot against Telegram",
        description="Run a bot against Telegram, by polling or with a webhook. "
        "The token is read from BOT_TOKEN, BOT_TOKEN_FILE or .env.",
        epilog="example: stepwell run bot.py --webhook https://bot.example.com/hook --workers 4",
    )
    run_command.add_argument("file", help="a file with a router or make_router(storage)")
    run_command.add_argument(
        "--storage",
        metavar="URL",
        help="the bot's storage (default: STEPWELL_STORAGE, else the bot's own, else an SQLite file beside the bot)",
    )
    run_command.add_argument(
        "--api", metavar="URL", help="the address of a Bot API server (default: BOT_API, else Telegram's)"
    )
    run_command.add_argument("--reload", action="store_true", help="restart when a file beside the bot changes")
    run_command.add_argument(
        "--no-runs",
        dest="runs",
        action="store_false",
        help="do not run the runs that handlers submit; workers in other processes do",
    )
    run_command.add_argument(
        "--no-wait",
        dest="wait",
        action="store_false",
        help="end with an error if the storage is away at the start, instead of waiting for it",
    )
    run_command.add_argument(
        "--health",
        type=port,
        metavar="PORT",
        help="serve /health/live and /health/ready on this port, for probes of an orchestrator",
    )
    run_command.add_argument(
        "--webhook",
        type=address,
        metavar="URL",
        help="serve a webhook instead of polling; the public address, with https",
    )
    run_command.add_argument("--host", help="where the webhook listens (default: 127.0.0.1)")
    run_command.add_argument("--port", type=port, help="the port of the webhook (default: 8080; 0: a free one)")
    run_command.add_argument(
        "--workers", type=positive, metavar="N", help="processes that serve the webhook (default: 1)"
    )
    if operator:
        _add_operator_commands(commands)
    parser.commands = commands.choices
    return parser


def _add_operator_commands(commands: Any) -> None:
    # Imported here because a bot that starts needs none of it.
    from stepwell.cli import completion, doctor, inspect, new
    from stepwell.cli.bots import botapi, crashtest, diagram, inbox, outbox, turns, webhook
    from stepwell.cli.records import copy, edits, imports, keys, migrate, timers
    from stepwell.cli.records import reading as records
    from stepwell.cli.runs import edits as run_edits
    from stepwell.cli.runs import reading as runs
    from stepwell.cli.runs import schedules

    reading, changing = (
        (records, timers, runs, doctor, inspect),
        (edits, run_edits, schedules, copy, imports, migrate, keys),
    )
    for module in (*reading, *changing, outbox, inbox, turns, botapi, webhook, crashtest, diagram, new, completion):
        module.add(commands)
