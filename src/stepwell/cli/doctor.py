"""``stepwell doctor``: check a storage, its records, timers and runs."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from shutil import get_terminal_size

from stepwell.cli import signals
from stepwell.cli.code import import_types, used
from stepwell.cli.command import Commands, add_command, bots_patience, given_url, storage_of
from stepwell.cli.output import cell, note, print_json
from stepwell.engine import counted
from stepwell.operate.doctor import Finding, diagnose

__all__ = ["add"]

_COLOURS = {"ok": "32", "warn": "33", "fail": "31"}


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "doctor",
        "check a storage: its server, durability, records, timers and runs; exit with 1 if a check fails",
        action=_doctor,
        example="stepwell doctor bot.py flows.py",
    )
    parser.add_argument(
        "code",
        nargs="*",
        help="files or modules with the bots and flows, to find records in states that they do not declare",
    )
    parser.add_argument("--all", action="store_true", help="read all records (default: 10,000 of each bot)")


def _doctor(options: argparse.Namespace) -> int:
    import_types(options.imports)
    machines, flows = used(options.code, given_url(options))

    async def run() -> list[Finding]:
        found = []
        storage = storage_of(options, machines, flows)
        try:
            async for finding in diagnose(
                storage,
                machines=machines,
                flows=flows,
                limit=None if options.all else 10_000,
                patience=bots_patience(options),
            ):
                found.append(finding)
                if not options.json:
                    _print(finding)
        finally:
            await storage.close()
        return found

    found = signals.run(run())
    failed = sum(each.level == "fail" for each in found)
    if options.json:
        print_json({"healthy": not failed, "checks": [each._asdict() for each in found]})
    else:
        warnings = sum(each.level == "warn" for each in found)
        numbers = {"check": len(found), "warning": warnings, "failure": failed}
        print(", ".join(counted(number, noun) for noun, number in numbers.items()))
        if not options.code:
            note("flows and states were not checked; give the files of your bots: stepwell doctor bot.py")
    return 1 if failed else 0


def _print(finding: Finding) -> None:
    level = f"{finding.level:<4}"
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb":
        level = f"\x1b[{_COLOURS[finding.level]}m{level}\x1b[0m"
    _print_wrapped(f"{level}  {finding.check:<12}", 18, cell(finding.what))
    if finding.advice:
        _print_wrapped(f"{'':<18}-> ", 21, cell(finding.advice))


def _print_wrapped(start: str, width: int, text: str) -> None:
    """Print a text behind ``start``, which has this width. In a terminal, its lines are wrapped and aligned."""
    room = max(get_terminal_size().columns - width, 20) if sys.stdout.isatty() else sys.maxsize
    lines = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)
    print(start + f"\n{'':<{width}}".join(lines))
