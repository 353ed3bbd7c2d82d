"""``stepwell schedules``: list schedules, and pause or resume one."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from datetime import datetime
from typing import Any

from stepwell import Storage
from stepwell.cli.command import Commands, add_command, add_yes, confirmed, with_storage
from stepwell.cli.output import moment, print_json, print_table, report
from stepwell.cli.writes import user_name
from stepwell.nodes import Schedules, ScheduleStatus
from stepwell.operate.audit import record_change
from stepwell.operate.runs import shown_value

__all__ = ["add"]


def add(commands: Commands) -> None:
    """Add the command to the command line."""
    added = add_command(
        commands,
        "schedules",
        "list the schedules of node flows, or pause or resume one",
        action=_schedules,
        example="stepwell schedules --pause nightly",
    )
    change = added.add_mutually_exclusive_group()
    change.add_argument("--pause", metavar="NAME", help="submit no runs of this schedule until it is resumed")
    change.add_argument("--resume", metavar="NAME", help="submit its runs again, from the next tick on")
    add_yes(added)


def _schedules(options: argparse.Namespace) -> int:
    async def listed(storage: Storage) -> int:
        found = sorted([each async for each in Schedules(storage).list()], key=lambda each: each.name)
        if options.json:
            print_json({"schedules": [_json(each) for each in found]})
        else:
            print_table(("schedule", "flow", "when", "next", "last run"), [_row(each) for each in found])
        return 0

    async def change(storage: Storage) -> int:
        known = Schedules(storage)
        name = options.pause if options.pause is not None else options.resume
        verb, done = ("Pause", "paused") if options.pause is not None else ("Resume", "resumed")
        before = await known.get(name)
        if not options.json:
            print_table(("schedule", "flow", "when", "next", "last run"), [_row(before)])
        if options.dry_run:
            return report(options, {done: False, "schedule": _json(before)}, "nothing was changed (dry run)")
        if not confirmed(options, f"{verb} this schedule?"):
            return 1
        await (known.pause(name) if options.pause is not None else known.resume(name))
        await record_change(storage, user_name(), f"{done} schedule {name}")
        return report(options, {done: True, "schedule": _json(await known.get(name))}, done)

    return with_storage(options, listed if options.pause is None and options.resume is None else change)


def _json(schedule: ScheduleStatus) -> dict[str, Any]:
    """Return a schedule for JSON, with its times as seconds since 1970 and its secrets masked."""
    return {
        **asdict(schedule),
        "shared": shown_value(dict(schedule.shared)),
        "next": _seconds(schedule.next),
        "last": _seconds(schedule.last),
    }


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()


def _row(schedule: ScheduleStatus) -> tuple[Any, ...]:
    when = f"every {schedule.every:g} s" if schedule.every is not None else f"{schedule.cron} {schedule.tz}"
    following = "paused" if schedule.paused else moment(_seconds(schedule.next))
    return schedule.name, schedule.flow, when, following, schedule.last_id
