"""Shared by the operator's commands: their options, and the storage that they open."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import ModuleType
from typing import Any

from stepwell.botfile import load_module
from stepwell.cli.output import note
from stepwell.errors import InvalidOption, StepwellError, UsageError
from stepwell.storage import Storage
from stepwell.storage.sqlite import SQLiteStorage
from stepwell.storage.urls import open_storage

__all__ = [
    "Commands",
    "Work",
    "add_command",
    "add_yes",
    "assignment",
    "duration",
    "import_code",
    "import_types",
    "json_or_text",
    "made_router",
    "positive",
    "storage_at",
    "url_of",
    "user_name",
    "with_storage",
]

#: The object that ``add_subparsers`` returns.
Commands = Any
#: What a command does with the storage; it returns the exit code.
Work = Callable[[Storage], Coroutine[Any, Any, int]]
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


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


def with_storage(options: argparse.Namespace, work: Work) -> int:
    """Open the storage of a command, call ``work`` with it, and return the exit code."""
    import_types(options)
    url = url_of(options)

    async def run() -> int:
        async with storage_at(url) as storage:
            return await work(storage)

    return asyncio.run(run())


def url_of(options: argparse.Namespace) -> str:
    """Return the URL of the storage; raise ``UsageError`` if none is given."""
    url: str | None = options.storage or os.environ.get("STEPWELL_STORAGE")
    if not url:
        raise UsageError("no storage is given; pass --storage sqlite:///bot.db, or set STEPWELL_STORAGE")
    return url


def storage_at(url: str, *, create: bool = False) -> Storage:
    """Return an existing storage. It is not swept, because a command may run for a moment only.

    ``create``: an SQLite file need not exist.
    """
    storage = open_storage(url, sweep_every=None)
    if not storage.shared:
        raise UsageError(f"{url.partition(':')[0]}:// is in the memory of one process; give the storage of the bot")
    if isinstance(storage, SQLiteStorage) and not create and not Path(storage.path).exists():
        raise UsageError(f"there is no file {storage.path}; check --storage and STEPWELL_STORAGE")
    return storage


def import_code(given: str) -> ModuleType:
    """Import a file or a module; raise ``UsageError`` if that fails."""
    try:
        return _imported(given)
    except StepwellError:
        raise
    except Exception as error:
        raise UsageError(f"cannot import {given}: {type(error).__name__}: {error}") from error


def import_types(options: argparse.Namespace) -> None:
    """Import the code of ``--import``, so that its stored types and the secret fields of its flows are known."""
    for given in options.imports:
        # The machine of the router knows the type of its profiles.
        made_router(import_code(given), given, "memory://")


def made_router(module: ModuleType, given: str, url: str) -> Any:
    """Return what ``make_router`` of a module makes for a storage; ``None`` if the module has no such function."""
    make = getattr(module, "make_router", None)
    if not callable(make):
        return None
    try:
        return make(url)
    except StepwellError:
        raise
    except Exception as error:
        raise UsageError(f"make_router() of {given} failed: {type(error).__name__}: {error}") from error


def _imported(given: str) -> ModuleType:
    if given.endswith(".py") or "/" in given or os.sep in given:
        return load_module(Path(given).resolve())
    # Modules in the working directory can be imported, as with python -m.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(given)
    except ModuleNotFoundError as error:
        raise UsageError(f"cannot import {given} ({error}); give a module, or a file that ends with .py") from error


def duration(text: str) -> float:
    """Parse a duration: ``90``, ``15m``, ``2h``, ``7d``."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"must be a duration like 90s, 15m, 2h or 7d, got {text!r}")
    return float(found[1]) * _SECONDS[found[2]]


def positive(text: str) -> int:
    """Parse a whole number above 0."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, got {text!r}")
    return int(text)


def assignment(text: str) -> tuple[str, Any]:
    """Parse ``field=value``: the value is JSON, or else a text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidOption(f"{text!r} is not field=value")
    return name, json_or_text(value)


def json_or_text(text: str) -> Any:
    """Parse JSON; a text that is not JSON is returned as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def add_yes(parser: argparse.ArgumentParser) -> None:
    """Add ``--yes`` and ``--dry-run``."""
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="show what would change, and change nothing")


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


def user_name() -> str:
    """Return the name of the user who runs the command, for the log."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
