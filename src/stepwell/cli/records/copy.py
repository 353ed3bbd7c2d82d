"""``stepwell copy``: all records to another storage."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from stepwell import SQLiteStorage, Storage, copy_records
from stepwell.cli import signals
from stepwell.cli.command import Commands, add_command, add_yes, confirmed, storage_at
from stepwell.cli.output import cell, note, report
from stepwell.cli.writes import user_name
from stepwell.engine import RUNS, Copied, count_extra, count_records, counted, decode_namespace
from stepwell.errors import InvalidOption, UsageError
from stepwell.operate.audit import log_write
from stepwell.operate.records import check_bot

__all__ = ["add"]


def add(commands: Commands) -> None:
    """Add the command."""
    copy = add_command(
        commands,
        "copy",
        "copy all records to another storage, verify them, and change nothing in the source",
        action=_copy,
        example="stepwell copy sqlite:///bot.db postgresql://localhost/bots",
        storage=False,
    )
    copy.add_argument("source", help="the URL of the storage to copy from; for a move, stop its bots first")
    copy.add_argument("target", help="the URL of the storage to copy to")
    copy.add_argument(
        "--bot", action="append", metavar="NAME", help="only this bot, with its logs and turns; may be repeated"
    )
    copy.add_argument("--runs", action="store_true", help="with --bot: the runs of node flows too")
    copy.add_argument("--keep", action="store_true", help="do not replace records of the target that differ")
    copy.add_argument(
        "--delete-extra",
        action="store_true",
        help="delete records of the target that the source does not have, such as those of users who were forgotten "
        "there since an earlier copy; without --bot, those of other bots too",
    )
    copy.add_argument("--no-verify", action="store_true", help="do not read all records again to compare them")
    add_yes(copy)


def _copy(options: argparse.Namespace) -> int:
    if options.source == options.target:
        raise InvalidOption("source and target are the same storage")
    if options.runs and not options.bot:
        raise InvalidOption("--runs needs --bot; without --bot everything is copied")
    if options.keep and options.delete_extra:
        raise InvalidOption("--keep and --delete-extra contradict each other; give one of them")
    if options.runs and options.delete_extra:
        raise InvalidOption(
            "--delete-extra with --bot and --runs would delete the runs of other programs; copy the runs without it"
        )
    names = None if not options.bot else [*options.bot, *([RUNS] if options.runs else [])]

    async def run() -> int:
        async with storage_at(options.source, patient=True) as source:
            for bot in options.bot or ():
                await check_bot(source, bot)
            if options.dry_run:
                return await _dry_run(options, source, names)
            if options.delete_extra and not sum((await count_records(source, names)).values()):
                raise UsageError(
                    "the source has no records, so --delete-extra would empty the target; nothing was changed. "
                    "Check the URLs and their order"
                )
            scheme = f"{cell(options.target.partition('://')[0])}://..."
            others = ", and delete what only the target has" if options.delete_extra else ""
            if not confirmed(options, f"Copy to {scheme}{others}?"):
                return 1
            target = storage_at(options.target, create=True, patient=True)
            _check_files(source, target)
            async with target:
                copied = await _logged_copy(options, source, target, names)
        if sys.stderr.isatty() and not options.json:
            print(file=sys.stderr)
        return _report(options, copied)

    return signals.run(run())


async def _dry_run(options: argparse.Namespace, source: Storage, names: list[str] | None) -> int:
    counts = await count_records(source, names)
    found = {_shown(name): count for name, count in counts.items()}
    result: dict[str, Any] = {"copied": False, "records": found}
    if options.delete_extra:
        result["removed"] = 0
        # There may be no such file yet.
        with suppress(UsageError):
            async with storage_at(options.target, patient=True) as target:
                result["removed"] = await count_extra(source, target, names)
    if not options.json:
        for name, count in found.items():
            print(f"{cell(name)}: {counted(count, 'record')}")
        if options.delete_extra:
            print(f"to delete in the target: {counted(result['removed'], 'record')}")
    return report(options, result, "nothing was copied (dry run)")


def _check_files(source: Storage, target: Storage) -> None:
    """Raise ``InvalidOption`` if both are the same SQLite file, written in two ways."""
    files = [getattr(storage, "inner", storage) for storage in (source, target)]
    paths = [os.path.realpath(file.path) for file in files if isinstance(file, SQLiteStorage)]
    if len(paths) == 2 and paths[0] == paths[1]:
        raise InvalidOption(f"source and target are the same file, {paths[0]}")


async def _logged_copy(
    options: argparse.Namespace, source: Storage, target: Storage, names: list[str] | None
) -> Copied:
    """Copy, and log how many records were written, also if the copy fails or is stopped."""
    show = _progress(options)
    so_far: Copied | None = None

    def progress(copied: Copied) -> None:
        nonlocal so_far
        so_far = copied
        if show is not None:
            show(copied)

    ended = "; the copy failed"
    try:
        copied = await copy_records(
            source,
            target,
            namespaces=names,
            overwrite=not options.keep,
            verify=not options.no_verify,
            remove=options.delete_extra,
            progress=progress,
        )
        so_far, ended = copied, ""
        return copied
    except asyncio.CancelledError:
        ended = "; the copy was stopped"
        raise
    finally:
        if so_far is not None and (not ended or so_far.written or so_far.removed):
            what = f"copied {counted(so_far.written, 'record')} from {source.location} to {target.location}"
            removed = f" and deleted {so_far.removed} there" if so_far.removed else ""
            log_write(user_name(), f"{what}{removed}{ended}")


def _report(options: argparse.Namespace, copied: Copied) -> int:
    """Print the result."""
    result = {**asdict(copied), "namespaces": list(map(_shown, copied.namespaces))}
    del result["namespace"]
    result["damaged"] = [address.text for address in copied.damaged]
    counts = {
        "were there": copied.same,
        "kept": copied.kept,
        "verified": copied.verified,
        "changed meanwhile": copied.changed,
        "deleted in the target": copied.removed,
    }
    # The last two are rare.
    told = [f"{count} {what}" for n, (what, count) in enumerate(counts.items()) if n < 3 or count]
    if not options.json:
        for each in result["damaged"]:
            note(f"damaged, copied unchanged: {cell(each)}")
        if copied.changed:
            note(f"{counted(copied.changed, 'record')} changed in the source meanwhile; copy again to copy the changes")
        if copied.extra:
            extra = counted(copied.extra, "record of the target is", "records of the target are")
            note(
                f"{extra} not in the source: deleted there since an earlier copy, or from elsewhere; --delete-extra "
                "deletes what is not in the source"
            )
    return report(options, {"copied": True, **result}, f"copied {counted(copied.written, 'record')}, {', '.join(told)}")


def _shown(namespace: str) -> str:
    return str.__str__(decode_namespace(namespace)).strip('"')


def _progress(options: argparse.Namespace) -> Callable[[Copied], None] | None:
    if options.json or not sys.stderr.isatty():
        return None

    def show(copied: Copied) -> None:
        done = f"{copied.written} written, {copied.same} were there, {copied.verified} verified"
        print(f"\r{cell(_shown(copied.namespace))}: {done} ", end="", file=sys.stderr, flush=True)

    return show
