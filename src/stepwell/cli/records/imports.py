"""``stepwell import-aiogram`` and ``import-ptb``: the states and data of a bot, from the storage of its framework."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from stepwell import MemoryStorage, SQLiteStorage, Storage
from stepwell.adapters.imports.aiogram import import_aiogram
from stepwell.adapters.imports.ptb import import_ptb
from stepwell.adapters.imports.records import ImportResult
from stepwell.cli import signals
from stepwell.cli.arguments import positive
from stepwell.cli.code import import_types
from stepwell.cli.command import Commands, add_command, add_yes, confirmed, storage_at, url_of
from stepwell.cli.output import cell, note, report
from stepwell.cli.writes import user_name
from stepwell.engine import counted, quoted
from stepwell.errors import InvalidOption
from stepwell.operate.audit import record_change

__all__ = ["add"]

#: How many records of each kind are listed in the report.
LISTED = 20

#: An import into a storage.
Work = Callable[[Storage, Callable[[ImportResult], None] | None], Coroutine[Any, Any, ImportResult]]


def add(commands: Commands) -> None:
    """Add the commands."""
    aiogram = add_command(
        commands,
        "import-aiogram",
        "import the states and data of an aiogram bot from its RedisStorage, and change nothing there",
        action=_import_aiogram,
        example="stepwell import-aiogram redis://localhost --bot-id 123456 --storage sqlite:///bot.db",
    )
    aiogram.add_argument("source", metavar="URL", help="the Redis of aiogram's RedisStorage; stop the bot first")
    aiogram.add_argument("--bot-id", type=positive, metavar="ID", help="the bot of keys without a bot id")
    aiogram.add_argument("--prefix", default="fsm", help="the prefix of the DefaultKeyBuilder (default: fsm)")
    aiogram.add_argument("--separator", default=":", help="its separator (default: a colon)")
    aiogram.add_argument("--with-bot-id", action="store_true", help="its keys have bot ids")
    aiogram.add_argument(
        "--with-business-connection-id", action="store_true", help="its keys have business connection ids"
    )
    aiogram.add_argument("--with-destiny", action="store_true", help="its keys have destinies")
    aiogram.add_argument(
        "--keys",
        action="append",
        default=[],
        metavar="PATTERN",
        help="the form of the keys of another key builder, such as 'fsm:{bot_id}:{chat_id}:{user_id}:{part}', also "
        "with {thread_id}, {business_connection_id} and {destiny}; may be repeated",
    )
    aiogram.add_argument("--name", default="aiogram", help="the name of the StepwellStorage (default: aiogram)")
    _add_options(aiogram)
    ptb = add_command(
        commands,
        "import-ptb",
        "import the data and conversations of a python-telegram-bot from its PicklePersistence",
        action=_import_ptb,
        example="stepwell import-ptb bot.pickle --trust-pickle --bot-id 123456 --storage sqlite:///bot.db",
    )
    ptb.add_argument("file", help="the file of the PicklePersistence, or its filepath with single_file=False")
    ptb.add_argument("--trust-pickle", action="store_true", help="unpickle the file, which can run any code")
    ptb.add_argument("--bot-id", type=positive, metavar="ID", help="the number at the beginning of the bot's token")
    ptb.add_argument("--namespace", metavar="NAME", help="that of the StepwellPersistence (default: ptb:<bot id>)")
    _add_options(ptb)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--overwrite", action="store_true", help="overwrite records of the storage that differ")
    parser.add_argument(
        "--list", type=positive, default=LISTED, metavar="N", help=f"list this many problems (default: {LISTED})"
    )
    add_yes(parser)


def _import_aiogram(options: argparse.Namespace) -> int:
    if not options.source.startswith(("redis://", "rediss://", "unix://")):
        raise InvalidOption("give the URL of aiogram's Redis: redis://, rediss:// or unix://")

    async def work(storage: Storage, progress: Callable[[ImportResult], None] | None) -> ImportResult:
        return await import_aiogram(
            options.source,
            storage,
            keys=options.keys,
            bot_id=options.bot_id,
            prefix=options.prefix,
            separator=options.separator,
            with_bot_id=options.with_bot_id,
            with_business_connection_id=options.with_business_connection_id,
            with_destiny=options.with_destiny,
            name=options.name,
            overwrite=options.overwrite,
            dry_run=options.dry_run,
            most_problems=options.list,
            progress=progress,
        )

    return _run(options, work)


def _import_ptb(options: argparse.Namespace) -> int:
    if not options.trust_pickle:
        raise InvalidOption(
            f"{quoted(options.file)} is a pickle, which can run any code; "
            "if your bot has written it, pass --trust-pickle"
        )

    async def work(storage: Storage, progress: Callable[[ImportResult], None] | None) -> ImportResult:
        return await import_ptb(
            options.file,
            storage,
            bot_id=options.bot_id,
            namespace=options.namespace,
            trust_pickle=options.trust_pickle,
            imports=options.imports,
            overwrite=options.overwrite,
            dry_run=options.dry_run,
            most_problems=options.list,
            progress=progress,
        )

    return _run(options, work)


def _run(options: argparse.Namespace, work: Work) -> int:
    """Ask, import, and print the report."""
    import_types(options.imports)
    storage = storage_at(url_of(options), create=True, patient=True)
    if options.dry_run and isinstance(storage, SQLiteStorage) and not Path(storage.path).exists():
        # A dry run creates no file.
        storage = MemoryStorage()
    if not options.dry_run and not confirmed(options, f"Import into {cell(storage.location)}?"):
        return 1

    async def run() -> ImportResult:
        # The first write opens the storage, so that an import that is refused creates no file.
        try:
            result = await work(storage, _progress(options))
            if not options.dry_run:
                await record_change(
                    storage, user_name(), f"imported {counted(result.written, 'record')} into {storage.location}"
                )
            return result
        finally:
            await storage.close()

    result = signals.run(run())
    if sys.stderr.isatty() and not options.json:
        print(file=sys.stderr)
    _print(options, result)
    return 1 if result.failed else 0


def _print(options: argparse.Namespace, result: ImportResult) -> None:
    counts = {
        name: getattr(result, name) for name in ("read", "written", "overwritten", "same", "kept", "verified", "failed")
    }
    lists = {"kept_records": result.kept_records, "problems": result.problems}
    for name, listed, count in (
        ("left alone", result.kept_records, result.kept),
        ("not imported", result.problems, result.failed),
    ):
        for each in () if options.json else listed:
            note(f"{name}: {cell(each.key)}: {cell(each.why)}")
        if not options.json and count > len(listed):
            note(f"{name}: {count - len(listed)} more")
    verb = "would be written (dry run)" if options.dry_run else "written"
    text = (
        f"{counted(result.read, 'record')} read, {result.written} {verb}, {result.same} were there, "
        f"{result.kept} left alone, {result.verified} verified, {result.failed} not imported"
    )
    listed_all = {name: [each._asdict() for each in listed] for name, listed in lists.items()}
    report(options, {"imported": not options.dry_run, **counts, **listed_all}, text)


def _progress(options: argparse.Namespace) -> Callable[[ImportResult], None] | None:
    if options.json or not sys.stderr.isatty():
        return None

    def show(result: ImportResult) -> None:
        done = f"{result.read} read, {result.written} written, {result.same} were there, {result.failed} not imported"
        print(f"\r{done} ", end="", file=sys.stderr, flush=True)

    return show
