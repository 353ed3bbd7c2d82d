"""``stepwell new-key`` and ``stepwell rotate-keys``: the keys of encrypted storages."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from stepwell import Storage
from stepwell.cli.command import Commands, add_command, add_yes, confirmed, with_storage
from stepwell.cli.output import cell, note, report
from stepwell.cli.writes import user_name
from stepwell.engine import counted
from stepwell.errors import UsageError
from stepwell.operate.audit import record_change
from stepwell.operate.records import check_bot

__all__ = ["add"]


def add(commands: Commands) -> None:
    """Add the commands."""
    add_command(
        commands,
        "new-key",
        "print a new random key for an encrypted storage",
        action=_new_key,
        example="stepwell new-key >> keys.txt",
        storage=False,
    )
    rotate = add_command(
        commands,
        "rotate-keys",
        "encrypt all records again with the first key of STEPWELL_KEYS; bots may run meanwhile",
        action=_rotate,
        example="stepwell rotate-keys --storage sealed+sqlite:///bot.db",
    )
    rotate.add_argument(
        "--bot", action="append", metavar="NAME", help="only this bot, with its logs and turns; may be repeated"
    )
    add_yes(rotate)


def _new_key(options: argparse.Namespace) -> int:
    # Imported here because it needs the extra.
    from stepwell.storage.sealed import SealingKey, new_key

    key = new_key()
    return report(options, {"key": key, "id": SealingKey(key).id}, key)


def _rotate(options: argparse.Namespace) -> int:
    from stepwell import SealedStorage
    from stepwell.storage.sealed import Rotated, rotate_keys

    async def work(storage: Storage) -> int:
        if not isinstance(storage, SealedStorage):
            raise UsageError("this storage is not encrypted; write sealed+ before its URL")
        for bot in options.bot or ():
            await check_bot(storage, bot)
        key = storage.keyring.newest.id
        if options.dry_run:
            return report(options, {"rotated": False, "key": key}, f"records would get the key {key} (dry run)")
        which = f"the records of {', '.join(map(cell, options.bot))}" if options.bot else "all records"
        if not confirmed(options, f"Encrypt {which} of {cell(storage.location)} with the key {key}?"):
            return 1

        def progress(rotated: Rotated) -> None:
            if sys.stderr.isatty() and not options.json:
                done = f"{rotated.rewritten} encrypted, {rotated.current} had the key"
                print(f"\r{done} ", end="", file=sys.stderr, flush=True)

        rotated = await rotate_keys(storage, namespaces=options.bot, progress=progress)
        if sys.stderr.isatty() and not options.json:
            print(file=sys.stderr)
        encrypted = f"encrypted {counted(rotated.rewritten, 'record')} with the key {key}"
        await record_change(storage, user_name(), encrypted)
        left: dict[str, Any] = {
            name: [address.text for address in found]
            for name, found in (("unreadable", rotated.unreadable), ("busy", rotated.busy))
        }
        for name, texts in left.items() if not options.json else ():
            for text in texts:
                note(f"{name}, left unchanged: {cell(text)}")
        done = {"rotated": True, "key": key, "rewritten": rotated.rewritten, "current": rotated.current, **left}
        told = f"{encrypted}; {rotated.current} had it"
        report(options, done, told)
        return 1 if rotated.unreadable or rotated.busy else 0

    return with_storage(options, work, patient=True)
