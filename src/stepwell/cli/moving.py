"""``stepwell copy`` and ``stepwell migrate``: to another storage, and to the present revision of flows."""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import asdict
from typing import Any

from stepwell.cli.code import used
from stepwell.cli.command import Commands, add_command, add_yes, confirmed, storage_at, url_of, with_storage
from stepwell.cli.output import cell, note, print_json, report
from stepwell.codec import decode_namespace, encode_key, encode_namespace
from stepwell.errors import InvalidOption
from stepwell.fsm import FSM
from stepwell.record import RUNS
from stepwell.storage import Storage
from stepwell.storage.copy import Copied, copy_records
from stepwell.storage.listing import Query

__all__ = ["add"]


def add(commands: Commands) -> None:
    """Add the commands."""
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

    migrate = add_command(
        commands,
        "migrate",
        "migrate the tables of a storage, and its records to the present revision of their flows",
        action=_migrate,
        example="stepwell migrate bot.py --dry-run",
    )
    migrate.add_argument("code", nargs="*", help="files or modules with the bots whose records to migrate")
    add_yes(migrate)


def _copy(options: argparse.Namespace) -> int:
    if options.source == options.target:
        raise InvalidOption("source and target are the same storage")
    if options.runs and not options.bot:
        raise InvalidOption("--runs needs --bot; without --bot everything is copied")
    names = None if not options.bot else [*options.bot, *([RUNS] if options.runs else [])]

    async def run() -> int:
        async with storage_at(options.source) as source:
            if options.dry_run:
                chosen = await source.namespaces() if names is None else names
                found = {_shown(name): await _count(source, name) for name in chosen}
                if not options.json:
                    for name, count in found.items():
                        print(f"{cell(name)}: {count} records")
                return report(options, {"copied": False, "records": found}, "nothing was copied (dry run)")
            if not confirmed(options, f"Copy to {cell(options.target.partition('://')[0])}://...?"):
                return 1
            async with storage_at(options.target, create=True) as target:
                copied = await copy_records(
                    source,
                    target,
                    namespaces=names,
                    overwrite=not options.keep,
                    verify=not options.no_verify,
                    progress=_progress(options),
                )
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
    count = 0
    after: Any = None
    while True:
        records, after = await storage.page(Query(namespace), after, 500)
        count += len(records)
        if after is None:
            return count


def _progress(options: argparse.Namespace) -> Any:
    if options.json or not sys.stderr.isatty():
        return None

    def show(copied: Copied) -> None:
        done = f"{copied.written} written, {copied.same} were there, {copied.verified} verified"
        print(f"\r{cell(_shown(copied.namespace))}: {done} ", end="", file=sys.stderr, flush=True)

    return show


def _migrate(options: argparse.Namespace) -> int:
    machines, _ = used(options.code, url_of(options))

    async def work(storage: Storage) -> int:
        # Opening the storage has migrated its tables.
        settings = await storage.settings()
        schema = settings.get("schema")
        told: dict[str, Any] = {"schema": schema, "migrated": {}, "old": {}, "failed": []}
        text = f"the tables have schema version {schema}" if schema is not None else "the storage has no schema version"
        if not options.json:
            print(text)
        for fsm in machines:
            fsm.move_to(storage)
            told["old"][fsm.bot] = await _old(fsm)
            if not options.json:
                print(f"{cell(fsm.bot)}: {told['old'][fsm.bot]} records of an earlier revision")
        if options.dry_run or not sum(told["old"].values()):
            return report(options, told, "no records were changed")
        if not confirmed(options, "Migrate them?"):
            return 1
        for fsm in machines:
            done, failed = await fsm.migrate()
            told["migrated"][fsm.bot] = done
            told["failed"] += [{"bot": fsm.bot, "key": encode_key(key), "error": str(error)} for key, error in failed]
        if options.json:
            print_json(told)
        else:
            print(f"migrated {sum(told['migrated'].values())} records")
            for each in told["failed"]:
                note(f"not migrated: {cell(each['bot'])} {cell(each['key'])}: {cell(each['error'])}")
        return 1 if told["failed"] else 0

    return with_storage(options, work)


async def _old(fsm: FSM) -> int:
    """Count the records that have an earlier revision than their flow."""
    count = 0
    async for entry in fsm.storage.scan(fsm.bot):
        place = entry.place
        flow = None if place.flow is None else fsm.flows.get(place.flow)
        count += flow is not None and (place.revision or 1) < flow.revision
    return count
