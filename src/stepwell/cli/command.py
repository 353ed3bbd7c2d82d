"""Shared by the operator's commands: their options, and the storage that they open."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepwell import SQLiteStorage, Storage, open_storage
from stepwell.cli import signals
from stepwell.cli.code import import_types, used
from stepwell.cli.output import note
from stepwell.cli.writes import logged_writes
from stepwell.errors import UsageError
from stepwell.fsm import FSM
from stepwell.nodes import NodeFlow

__all__ = [
    "PATIENCE",
    "Commands",
    "Work",
    "add_command",
    "add_key",
    "add_yes",
    "bots_patience",
    "confirmed",
    "given_url",
    "storage_at",
    "storage_of",
    "url_of",
    "with_storage",
]

#: Seconds that a short command waits for a server that is down.
PATIENCE = 2.0
#: The default of all storages.
BOTS_PATIENCE = 10.0
#: The object that ``add_subparsers`` returns.
Commands = Any
#: What a command does with the storage; it returns the exit code.
Work = Callable[[Storage], Coroutine[Any, Any, int]]


def add_command(
    commands: Commands,
    name: str,
    about: str,
    *,
    action: Callable[[argparse.Namespace], int],
    example: str,
    storage: bool = True,
) -> argparse.ArgumentParser:
    """Add a command with the options that all of the operator's commands have."""
    added: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    added.set_defaults(action=action)
    if storage:
        added.add_argument(
            "--storage", metavar="URL", help="the storage (default: STEPWELL_STORAGE, else that of the bot's file)"
        )
        added.add_argument(
            "--import",
            dest="imports",
            metavar="FILE",
            action="append",
            default=[],
            help="a file or module to import first, so that its stored types are known; may be repeated",
        )
    added.add_argument("--json", action="store_true", help="print JSON and nothing else")
    return added


def add_key(parser: argparse.ArgumentParser) -> None:
    """Add the bot and the key of a record."""
    parser.add_argument("bot", help="the bot's name, or its file: bot.py")
    parser.add_argument("key", help="the key as ls shows it, or the ids in it: 42,43, or 42 for a private chat")


def add_yes(parser: argparse.ArgumentParser) -> None:
    """Add ``--yes`` and ``--dry-run`` to a command that writes, and log its writes."""
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="show what would change, and change nothing")
    action = parser.get_default("action")

    def logged(options: argparse.Namespace) -> int:
        with logged_writes() as log:
            code = int(action(options))
        return code or int(log.failures > 0)

    parser.set_defaults(action=logged)


def with_storage(
    options: argparse.Namespace,
    work: Work,
    *,
    machines: Sequence[FSM] = (),
    flows: Sequence[NodeFlow] = (),
    patient: bool = False,
) -> int:
    """Open the storage of a command, call ``work`` with it, and return the exit code; see ``storage_of``.

    If the bot of the command is a file, its name takes the place of the file in the options, and its machines are
    in ``options.machines``.
    """
    import_types(options.imports)
    bot = getattr(options, "bot", None)
    if isinstance(bot, str) and bot.endswith(".py") and Path(bot).is_file():
        machines, flows = used([bot], given_url(options))
        names = sorted({fsm.bot for fsm in machines})
        if len(names) != 1:
            has = f"has the bots {', '.join(names)}" if names else "has no router"
            raise UsageError(f"{bot} {has}; give the name of a bot, and --storage")
        options.bot = names[0]
    options.machines = machines

    async def run() -> int:
        async with storage_of(options, machines, flows, patient=patient) as storage:
            return await work(storage)

    return signals.run(run())


def given_url(options: argparse.Namespace) -> str | None:
    """Return the URL of the storage in the options or the environment, or ``None``."""
    return options.storage or os.environ.get("STEPWELL_STORAGE") or None


def url_of(options: argparse.Namespace) -> str:
    """Return the URL of the storage; raise ``UsageError`` if none is given."""
    url = given_url(options)
    if url is None:
        raise UsageError("no storage is given; pass --storage sqlite:///bot.db, or set STEPWELL_STORAGE")
    return url


def storage_of(
    options: argparse.Namespace, machines: Sequence[FSM], flows: Sequence[NodeFlow], *, patient: bool = False
) -> Storage:
    """Return the storage that the options or the environment name, else the one that the user's code names."""
    url = given_url(options)
    if url is not None:
        return storage_at(url, patient=patient)
    named = [*(fsm.storage for fsm in machines), *(flow.storage for flow in flows if flow.storage is not None)]
    stores = {storage.location: storage for storage in named}
    if len(stores) > 1:
        raise UsageError(f"the code uses several storages ({', '.join(sorted(stores))}); choose one with --storage")
    if not stores:
        raise UsageError(
            "no storage is given; pass --storage sqlite:///bot.db, set STEPWELL_STORAGE, "
            f"or give the bot's file: stepwell {options.command} bot.py"
        )
    return _existing(next(iter(stores.values())))


def storage_at(url: str, *, create: bool = False, patient: bool = False) -> Storage:
    """Return an existing storage. It is not swept, because a command may run for a moment only.

    ``create``: an SQLite file need not exist. ``patient``: wait for a server that is down as a bot does, because the
    command may run for long.
    """
    options: dict[str, Any] = {"sweep_every": None}
    if not patient and _may_be_impatient(url):
        options["patience"] = PATIENCE
    return _existing(open_storage(url, **options), create=create)


def _may_be_impatient(url: str) -> bool:
    """Return whether the command chooses how long to wait: for a server, unless the URL says it."""
    is_server = url.removeprefix("sealed+").startswith(("redis", "unix:", "postgres"))
    return is_server and "patience=" not in url


def bots_patience(options: argparse.Namespace) -> float | None:
    """Return how long bots wait for the server that the options name, or ``None`` if the command waits as they do."""
    url = given_url(options)
    return BOTS_PATIENCE if url is not None and _may_be_impatient(url) else None


def _existing(storage: Storage, *, create: bool = False) -> Storage:
    """Return a storage; raise ``UsageError`` if no other process can have written to it."""
    # The storage inside an encrypted one.
    store = getattr(storage, "inner", storage)
    if not storage.shared:
        raise UsageError("the storage is in the memory of one process; give that of the bot: --storage URL")
    if isinstance(store, SQLiteStorage) and not create:
        advice = "run the bot first, or check --storage and STEPWELL_STORAGE"
        file = Path(store.path)
        if not file.exists():
            raise UsageError(f"there is no file {store.path}; {advice}")
        if file.is_file() and file.stat().st_size == 0:
            # Opening it would make it a database.
            raise UsageError(f"the file {store.path} is empty; {advice}")
    return storage


@contextmanager
def _plain_sigterm() -> Iterator[None]:
    """Let SIGTERM end the process while it waits for an answer, which blocks the event loop. Nothing is held then."""
    try:
        before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    except ValueError:
        # Outside the main thread.
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def confirmed(options: argparse.Namespace, question: str) -> bool:
    """Ask, unless ``--yes`` is given; return whether to go on."""
    if options.yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError("nothing was changed: there is no terminal to ask; pass --yes, or --dry-run to look first")
    with _plain_sigterm():
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
    if answer.strip().lower() in ("y", "yes"):
        return True
    note("nothing was changed")
    return False
