"""Shared by the operator's commands: their options, and the storage that they open."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from stepwell.cli.code import import_types
from stepwell.cli.output import note
from stepwell.cli.writes import logged_writes
from stepwell.errors import UsageError
from stepwell.storage import Storage
from stepwell.storage.sqlite import SQLiteStorage
from stepwell.storage.urls import open_storage

__all__ = [
    "Commands",
    "Work",
    "add_command",
    "add_key",
    "add_yes",
    "confirmed",
    "storage_at",
    "url_of",
    "with_storage",
]

#: Seconds that a short command waits for a server that is down.
PATIENCE = 2.0
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
        added.add_argument("--storage", metavar="URL", help="the storage (default: STEPWELL_STORAGE)")
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
    parser.add_argument("bot", help="the bot's name")
    parser.add_argument("key", help="the key as ls shows it, or the ids in it: 42,43, or 42 for a private chat")


def add_yes(parser: argparse.ArgumentParser) -> None:
    """Add ``--yes`` and ``--dry-run`` to a command that writes, and log its writes."""
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="show what would change, and change nothing")
    action = parser.get_default("action")

    def logged(options: argparse.Namespace) -> int:
        with logged_writes():
            return int(action(options))

    parser.set_defaults(action=logged)


def with_storage(options: argparse.Namespace, work: Work, *, patient: bool = False) -> int:
    """Open the storage of a command, call ``work`` with it, and return the exit code; see ``storage_at``."""
    import_types(options.imports)
    url = url_of(options)

    async def run() -> int:
        async with storage_at(url, patient=patient) as storage:
            return await work(storage)

    return asyncio.run(run())


def url_of(options: argparse.Namespace) -> str:
    """Return the URL of the storage; raise ``UsageError`` if none is given."""
    url: str | None = options.storage or os.environ.get("STEPWELL_STORAGE")
    if not url:
        raise UsageError("no storage is given; pass --storage sqlite:///bot.db, or set STEPWELL_STORAGE")
    return url


def storage_at(url: str, *, create: bool = False, patient: bool = False) -> Storage:
    """Return an existing storage. It is not swept, because a command may run for a moment only.

    ``create``: an SQLite file need not exist. ``patient``: wait for a server that is down as a bot does, because the
    command may run for long.
    """
    options: dict[str, Any] = {"sweep_every": None}
    is_server = url.removeprefix("sealed+").startswith(("redis", "unix:", "postgres"))
    if not patient and is_server and "patience=" not in url:
        options["patience"] = PATIENCE
    storage = open_storage(url, **options)
    if not storage.shared:
        raise UsageError(f"{url.partition(':')[0]}:// is in the memory of one process; give the storage of the bot")
    # The storage inside an encrypted one.
    store = getattr(storage, "inner", storage)
    if isinstance(store, SQLiteStorage) and not create and not Path(store.path).exists():
        raise UsageError(f"there is no file {store.path}; check --storage and STEPWELL_STORAGE")
    return storage


def confirmed(options: argparse.Namespace, question: str) -> bool:
    """Ask, unless ``--yes`` is given; return whether to go on."""
    if options.yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError("nothing was changed: there is no terminal to ask; pass --yes, or --dry-run to look first")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    note("nothing was changed")
    return False
