"""``stepwell timers``: records with a timer."""

from __future__ import annotations

import argparse
import time

from stepwell import Storage
from stepwell.cli.arguments import duration, positive
from stepwell.cli.command import Commands, add_command, with_storage
from stepwell.cli.output import due, print_json, print_table
from stepwell.errors import InvalidOption
from stepwell.operate.records import bots, check_bot, timers

__all__ = ["add"]


def add(commands: Commands) -> None:
    """Add the command."""
    timer = add_command(
        commands,
        "timers",
        "list records with a timer, the earliest first",
        action=_timers,
        example="stepwell timers shop --overdue",
    )
    timer.add_argument("bot", nargs="?", help="the bot's name or file (default: all bots)")
    timer.add_argument("--overdue", action="store_true", help="only timers that are due")
    timer.add_argument("--within", type=duration, metavar="TIME", help="only timers that are due within this time: 1h")
    timer.add_argument("--limit", type=positive, default=50, metavar="N", help="the most timers to list (default: 50)")


def _timers(options: argparse.Namespace) -> int:
    if options.overdue and options.within is not None:
        raise InvalidOption("give --overdue or --within, not both")

    async def work(storage: Storage) -> int:
        if options.bot is not None:
            await check_bot(storage, options.bot)
        now = (storage.clock or time.time)()
        before = now if options.overdue else now + options.within if options.within is not None else 1e12
        found = []
        for bot in [options.bot] if options.bot is not None else await bots(storage):
            found += await timers(storage, bot, before=before, limit=options.limit)
        found = sorted(found, key=lambda each: each.deadline)[: options.limit]
        if options.json:
            print_json({"timers": [{**each._asdict(), "overdue": each.deadline <= now} for each in found]})
            return 0
        print_table(
            ("bot", "key", "flow", "state", "due"),
            [(each.bot, each.key, each.flow, each.state, due(each.deadline)) for each in found],
        )
        return 0

    return with_storage(options, work)
