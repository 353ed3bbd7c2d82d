"""``stepwell migrate``: the tables of a storage, and its records at the present revision of their flows."""

from __future__ import annotations

import argparse
from typing import Any

from stepwell import Storage
from stepwell.cli.code import used
from stepwell.cli.command import Commands, add_command, add_yes, confirmed, given_url, with_storage
from stepwell.cli.output import cell, note, print_json, report
from stepwell.cli.writes import user_name
from stepwell.engine import counted, encode_key
from stepwell.fsm import FSM
from stepwell.operate.audit import record_change

__all__ = ["add"]


def add(commands: Commands) -> None:
    """Add the command."""
    migrate = add_command(
        commands,
        "migrate",
        "create the tables of a storage, and migrate its records to the present revision of their flows",
        action=_migrate,
        example="stepwell migrate bot.py --dry-run",
    )
    migrate.add_argument("code", nargs="*", help="files or modules with the bots whose records to migrate")
    add_yes(migrate)


def _migrate(options: argparse.Namespace) -> int:
    machines, flows = used(options.code, given_url(options))

    async def work(storage: Storage) -> int:
        # Opening the storage has created its tables.
        settings = await storage.settings()
        schema = settings.get("schema")
        told: dict[str, Any] = {"schema": schema, "migrated": {}, "old": {}, "failed": []}
        text = f"the tables have schema version {schema}" if schema is not None else "the storage has no tables"
        if not options.json:
            print(text)
        for fsm in machines:
            fsm.move_to(storage)
            told["old"][fsm.bot] = await _old(fsm)
            if not options.json:
                print(f"{cell(fsm.bot)}: {counted(told['old'][fsm.bot], 'record')} of an earlier revision")
        if options.dry_run or not sum(told["old"].values()):
            return report(options, told, "no records were changed")
        if not confirmed(options, "Migrate them?"):
            return 1
        for fsm in machines:
            done, failed = await fsm.migrate()
            told["migrated"][fsm.bot] = done
            await record_change(storage, user_name(), f"migrated {counted(done, 'record')} of {fsm.bot}")
            told["failed"] += [{"bot": fsm.bot, "key": encode_key(key), "error": str(error)} for key, error in failed]
        if options.json:
            print_json(told)
        else:
            print(f"migrated {counted(sum(told['migrated'].values()), 'record')}")
            for each in told["failed"]:
                note(f"not migrated: {cell(each['bot'])} {cell(each['key'])}: {cell(each['error'])}")
        return 1 if told["failed"] else 0

    return with_storage(options, work, machines=machines, flows=flows, patient=True)


async def _old(fsm: FSM) -> int:
    """Count the records that have an earlier revision than their flow."""
    count = 0
    async for entry in fsm.storage.scan(fsm.bot):
        place = entry.place
        flow = None if place.flow is None else fsm.flows.get(place.flow)
        count += flow is not None and (place.revision or 1) < flow.revision
    return count
