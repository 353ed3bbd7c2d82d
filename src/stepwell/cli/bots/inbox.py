"""``stepwell inbox``: the updates that a polling bot has not finished, and those that were set aside."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from stepwell import Storage
from stepwell.cli.command import Commands, add_command, add_yes, confirmed, with_storage
from stepwell.cli.output import print_json, print_table, report
from stepwell.cli.writes import user_name
from stepwell.engine import counted, masked_text
from stepwell.operate.audit import record_change
from stepwell.operate.records import check_bot

__all__ = ["add"]


def add(commands: Commands) -> None:
    """Add the command."""
    inbox = add_command(
        commands,
        "inbox",
        "list the updates that a polling bot has not finished, and those that were set aside",
        action=_inbox,
        example="stepwell inbox bot.py --retry",
    )
    inbox.add_argument("bot", help="the bot's name, or its file: bot.py")
    inbox.add_argument(
        "--retry", action="store_true", help="let the bot handle the updates that were set aside after its next start"
    )
    add_yes(inbox)


def _inbox(options: argparse.Namespace) -> int:
    async def work(storage: Storage) -> int:
        # Imported here because only this command needs the bot extra.
        from stepwell.telegram.engine import retry_aside, updates_aside, updates_in_inbox

        waiting, aside = await asyncio.gather(
            updates_in_inbox(storage, options.bot), updates_aside(storage, options.bot)
        )
        if not waiting and not aside:
            await check_bot(storage, options.bot)
        rows = [(each.update_id, each.chat, each.kind, each.attempts, each.why or "it waits") for each in waiting]
        rows += [(each.update_id, each.chat, each.kind, each.attempts, each.why or "") for each in aside]
        if not options.retry:
            if options.json:
                print_json({"waiting": list(map(_json, waiting)), "aside": list(map(_json, aside))})
            else:
                print_table(("update", "chat", "kind", "attempts", "why"), rows)
            return 0
        able = [each for each in aside if each.update is not None]
        if not options.json:
            print_table(("update", "chat", "kind", "attempts", "why"), rows[len(waiting) :])
        if not able or options.dry_run:
            return report(options, {"retried": 0}, "nothing was changed" + (" (dry run)" if options.dry_run else ""))
        if not confirmed(options, f"Put {counted(len(able), 'update')} back into the inbox?"):
            return 1
        await retry_aside(storage, options.bot, able)
        await record_change(
            storage, user_name(), f"put {counted(len(able), 'update')} of {options.bot} back into the inbox"
        )
        told = f"put {counted(len(able), 'update')} back; the bot handles them after its next start"
        return report(options, {"retried": len(able)}, told)

    return with_storage(options, work)


def _json(each: Any) -> dict[str, Any]:
    shown: dict[str, Any] = {**each._asdict()}
    del shown["update"], shown["entry"], shown["log"]
    return shown | {"traceback": each.traceback and masked_text(each.traceback)}
