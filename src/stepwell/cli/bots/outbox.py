"""``stepwell outbox``: the calls that a bot has not sent, and those that were refused."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from stepwell import Storage
from stepwell.cli.arguments import positive
from stepwell.cli.command import PATIENCE, Commands, add_command, add_yes, confirmed, with_storage
from stepwell.cli.output import ago, due, print_json, print_table, report
from stepwell.cli.writes import user_name
from stepwell.engine import counted, masked_text
from stepwell.errors import BotApiError, InvalidOption
from stepwell.fsm.engine import RefusedCall, refused_calls, refused_log
from stepwell.operate.audit import record_change
from stepwell.operate.masking import masked
from stepwell.operate.outbox import UnsentCalls, change_unsent, unsent_calls
from stepwell.operate.records import check_bot

__all__ = ["add"]

#: Seconds for one answer of the Bot API.
TIMEOUT = 10.0


def add(commands: Commands) -> None:
    """Add the command."""
    outbox = add_command(
        commands,
        "outbox",
        "list the calls that a bot has not sent yet, or that were refused; send them again, or drop them",
        action=_outbox,
        example="stepwell outbox bot.py --refused --resend",
    )
    outbox.add_argument("bot", help="the bot's name, or its file: bot.py")
    outbox.add_argument(
        "--refused",
        action="store_true",
        help="the calls of the last 7 days that Telegram refused, or that were given up",
    )
    what = outbox.add_mutually_exclusive_group()
    what.add_argument("--resend", action="store_true", help="send them again; unsent ones are sent by the running bot")
    what.add_argument("--drop", action="store_true", help="remove them")
    outbox.add_argument("--chat", metavar="CHAT", help="only the calls to this chat")
    outbox.add_argument("--limit", type=positive, default=50, metavar="N", help="the most to list (default: 50)")
    outbox.add_argument(
        "--api", metavar="URL", help="the address of a Bot API server (default: BOT_API, else Telegram's)"
    )
    add_yes(outbox)


def _outbox(options: argparse.Namespace) -> int:
    file = options.bot

    async def work(storage: Storage) -> int:
        if options.refused:
            found = [each async for each in refused_calls(storage, options.bot) if _is_to(options, each.chat)]
            if not found:
                await check_bot(storage, options.bot)
            return await _refused(options, storage, found[: options.limit], file)
        await check_bot(storage, options.bot)
        unsent = await unsent_calls(storage, options.bot, limit=options.limit)
        return await _unsent(
            options, storage, [each for each in unsent if any(_is_to(options, chat) for _, chat in each.calls)]
        )

    return with_storage(options, work)


def _is_to(options: argparse.Namespace, chat: object) -> bool:
    return options.chat is None or str(chat) == options.chat


async def _unsent(options: argparse.Namespace, storage: Storage, found: list[UnsentCalls]) -> int:
    if not options.resend and not options.drop:
        if options.json:
            print_json({"unsent": [_unsent_json(each) for each in found]})
        else:
            print_table(("key", "calls", "attempts", "next"), [_unsent_row(each) for each in found])
        return 0
    verb, done = ("drop", "dropped") if options.drop else ("send", "to be sent now")
    if not options.json:
        print_table(("key", "calls", "attempts", "next"), [_unsent_row(each) for each in found])
    if options.dry_run or not found:
        return report(options, {"changed": 0}, "nothing was changed" + (" (dry run)" if options.dry_run else ""))
    if not confirmed(options, f"{verb} the unsent calls of {counted(len(found), 'conversation')}?".capitalize()):
        return 1
    changed = 0
    for each in found:
        changed += await change_unsent(storage, each, drop=options.drop)
    await record_change(
        storage, user_name(), f"{done}: the unsent calls of {counted(changed, 'conversation')} of {options.bot}"
    )
    return report(options, {"changed": changed}, f"{done}: the calls of {counted(changed, 'conversation')}")


async def _refused(options: argparse.Namespace, storage: Storage, found: list[RefusedCall], file: str) -> int:
    if not options.resend and not options.drop:
        if options.json:
            print_json({"refused": [_refused_json(each) for each in found]})
        else:
            _print_refused(found)
        return 0
    if not options.json:
        _print_refused(found)
    if options.dry_run or not found:
        return report(options, {"changed": 0}, "nothing was changed" + (" (dry run)" if options.dry_run else ""))
    verb = "Drop" if options.drop else "Send"
    again = "" if options.drop else " again"
    if not confirmed(options, f"{verb} {counted(len(found), 'refused call')}{again}?"):
        return 1
    if options.drop:
        for each in found:
            await refused_log(storage, options.bot, each.chat).remove(each.number)
        await record_change(storage, user_name(), f"dropped {counted(len(found), 'refused call')} of {options.bot}")
        return report(options, {"dropped": len(found)}, f"dropped {counted(len(found), 'call')}")
    return await _send_again(options, storage, found, file)


async def _send_again(options: argparse.Namespace, storage: Storage, found: list[RefusedCall], file: str) -> int:
    # Imported here because only this needs the bot extra.
    from stepwell.telegram import BotClient, find_token
    from stepwell.telegram.engine import TELEGRAM

    api = options.api or os.environ.get("BOT_API") or TELEGRAM
    sent, problems = 0, []
    async with BotClient(find_token(_folder_of(file)), api=api, timeout=TIMEOUT, patience=PATIENCE) as client:
        for each in found:
            if each.call is None:
                problems.append((each, "it was too large to be kept"))
                continue
            params = dict(each.call)
            try:
                await client.call(params.pop("method"), **params)
            except (BotApiError, InvalidOption) as error:
                problems.append((each, str(error)))
                continue
            sent += 1
            await refused_log(storage, options.bot, each.chat).remove(each.number)
    await record_change(storage, user_name(), f"sent {counted(sent, 'refused call')} of {options.bot} again")
    told = [f"{each.method} to {each.chat}: {masked_text(why)}" for each, why in problems]
    text = "\n".join([f"sent {counted(sent, 'call')}", *told])
    report(options, {"sent": sent, "failed": told}, text)
    return 1 if problems else 0


def _folder_of(file: str) -> Path:
    """Return the folder that may have the token of a bot in ``.env``."""
    return Path(file).resolve().parent if file.endswith(".py") else Path.cwd()


def _print_refused(found: list[RefusedCall]) -> None:
    rows = [
        (f"{ago(each.at)} ago", each.chat, each.update_id, each.method, each.code, masked_text(each.description))
        for each in found
    ]
    print_table(("when", "chat", "update", "method", "code", "description"), rows)


def _refused_json(each: RefusedCall) -> dict[str, Any]:
    call = None if each.call is None else {name: _plain(value) for name, value in masked(each.call).items()}
    return {**each._asdict(), "description": masked_text(each.description), "call": call}


def _plain(value: Any) -> Any:
    """Return a parameter for JSON; a file is shown by its description."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


def _unsent_json(each: UnsentCalls) -> dict[str, Any]:
    calls = [{"method": method, "chat": chat} for method, chat in each.calls]
    return {"key": repr(each.key), "next": each.next_at, "attempts": each.attempts, "calls": calls}


def _unsent_row(each: UnsentCalls) -> tuple[Any, ...]:
    calls = ", ".join(method if chat is None else f"{method} to {chat}" for method, chat in each.calls)
    return each.key, calls, each.attempts, due(each.next_at)
