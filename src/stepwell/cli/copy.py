"""``stepwell copy``: all records to another storage."""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import asdict
from typing import Any

from stepwell.cli.command import Commands, add_command, add_yes, confirmed, storage_at
from stepwell.cli.output import cell, note, report
from stepwell.cli.writes import user_name
from stepwell.codec import decode_namespace, encode_namespace
from stepwell.errors import InvalidOption
from stepwell.operate.log import log_write
from stepwell.operate.records import check_bot
from stepwell.operate.search import pages
from stepwell.record import RUNS
from stepwell.storage import Storage
from stepwell.storage.copy import Copied, copy_records
from stepwell.storage.listing import Query

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
    copy.add_argument("source", help="the URL of the storage to copy from; stop its bots first")
    copy.add_argument("target", help="the URL of the storage to copy to")
    copy.add_argument("--bot", action="append", metavar="NAME", help="only this bot; may be repeated")
    copy.add_argument("--runs", action="store_true", help="with --bot: the runs of node flows too")
    copy.add_argument("--keep", action="store_true", help="keep records of the target that differ")
    copy.add_argument("--no-verify", action="store_true", help="do not read all records again to compare them")
    add_yes(copy)


def _copy(options: argparse.Namespace) -> int:
    if options.source == options.target:
        raise InvalidOption("source and target are the same storage")
    if options.runs and not options.bot:
        raise InvalidOption("--runs needs --bot; without --bot everything is copied")
    names = None if not options.bot else [*options.bot, *([RUNS] if options.runs else [])]

    async def run() -> int:
        async with storage_at(options.source, patient=True) as source:
            for bot in options.bot or ():
                await check_bot(source, bot)
            if options.dry_run:
                chosen = await source.namespaces() if names is None else names
                found = {_shown(name): await _count(source, name) for name in chosen}
                if not options.json:
                    for name, count in found.items():
                        print(f"{cell(name)}: {count} records")
                return report(options, {"copied": False, "records": found}, "nothing was copied (dry run)")
            if not confirmed(options, f"Copy to {cell(options.target.partition('://')[0])}://...?"):
                return 1
            async with storage_at(options.target, create=True, patient=True) as target:
                copied = await copy_records(
                    source,
                    target,
                    namespaces=names,
                    overwrite=not options.keep,
                    verify=not options.no_verify,
                    progress=_progress(options),
                )
                what = f"copied {copied.written} records from {source.location} to {target.location}"
                log_write(user_name(), what)
        if sys.stderr.isatty() and not options.json:
            print(file=sys.stderr)
        result = {**asdict(copied), "namespaces": list(map(_shown, copied.namespaces))}
        del result["namespace"]
        result["damaged"] = [address.text for address in copied.damaged]
        text = (
            f"copied {copied.written} records, {copied.same} were there, {copied.kept} kept, {copied.verified} verified"
        )
        for each in result["damaged"] if not options.json else ():
            note(f"damaged, copied unchanged: {cell(each)}")
        return report(options, {"copied": True, **result}, text)

    return asyncio.run(run())


def _shown(namespace: str) -> str:
    return str.__str__(decode_namespace(namespace)).strip('"')


async def _count(storage: Storage, namespace: str) -> int:
    namespace = encode_namespace(decode_namespace(namespace), storage.limits)
    return sum([len(page) async for page in pages(storage, Query(namespace))])


def _progress(options: argparse.Namespace) -> Any:
    if options.json or not sys.stderr.isatty():
        return None

    def show(copied: Copied) -> None:
        done = f"{copied.written} written, {copied.same} were there, {copied.verified} verified"
        print(f"\r{cell(_shown(copied.namespace))}: {done} ", end="", file=sys.stderr, flush=True)

    return show
