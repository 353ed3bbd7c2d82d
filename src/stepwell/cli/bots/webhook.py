"""``stepwell webhook``: the webhook of a bot."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path
from typing import Any

from stepwell.cli.command import PATIENCE, Commands, add_command
from stepwell.cli.output import moment, note, print_fields, print_json, report
from stepwell.engine import counted

__all__ = ["add"]

#: Seconds for one answer.
TIMEOUT = 10.0


def add(commands: Commands) -> None:
    """Add the command."""
    webhook = add_command(
        commands,
        "webhook",
        "show the webhook that Telegram keeps for a bot, or remove it",
        action=_webhook,
        example="stepwell webhook bot.py --delete",
        storage=False,
    )
    webhook.add_argument(
        "file", nargs="?", default="bot.py", help="the bot's file, beside which .env may have the token (not imported)"
    )
    what = webhook.add_mutually_exclusive_group()
    what.add_argument("--info", action="store_true", help="show it, and change nothing (the default)")
    what.add_argument(
        "--delete", action="store_true", help="remove it, so that the bot can poll; waiting updates are kept"
    )
    webhook.add_argument(
        "--api", metavar="URL", help="the address of a Bot API server (default: BOT_API, else Telegram's)"
    )


def _webhook(options: argparse.Namespace) -> int:
    # Imported here because only this command needs the bot extra.
    from stepwell.telegram import BotClient, find_token
    from stepwell.telegram.engine import TELEGRAM

    token = find_token(Path(options.file).resolve().parent)

    async def ask() -> tuple[str, dict[str, Any]]:
        api = options.api or os.environ.get("BOT_API") or TELEGRAM
        async with BotClient(token, api=api, timeout=TIMEOUT, patience=PATIENCE) as client:
            me, info = await client.call("getMe"), await client.call("getWebhookInfo")
            if options.delete and info["url"]:
                await client.call("deleteWebhook")
            return me["username"], {**info, "url": info["url"].replace(token, "<token>")}

    bot, info = asyncio.run(ask())
    waiting = counted(info["pending_update_count"], "update")
    if options.delete and (options.json or info["url"]):
        waits = f"; {waiting} will come then" if info["pending_update_count"] else ""
        told = f"removed the webhook of @{bot}, which can poll now{waits}"
        return report(options, {"bot": bot, "deleted": bool(info["url"])}, told)
    if options.json:
        print_json({"bot": bot, **info})
    elif not info["url"]:
        note(f"@{bot} has no webhook")
    else:
        error = info.get("last_error_message")
        at = "" if error is None else moment(info.get("last_error_date"))
        print_fields(
            {
                "bot": f"@{bot}",
                "url": info["url"],
                "waiting": waiting,
                "error": None if error is None else f"{error}, at {at}",
            }
        )
    return 0
