"""``stepwell set``, ``clear`` and ``forget``: changes of records."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from stepwell import Storage
from stepwell.cli.arguments import duration, positive, stored_assignment
from stepwell.cli.command import (
    Commands,
    Work,
    add_command,
    add_key,
    add_yes,
    confirmed,
    with_storage,
)
from stepwell.cli.output import cell, json_text, note, report
from stepwell.cli.records.reading import print_record
from stepwell.cli.runs.edits import set_shared
from stepwell.cli.writes import user_name
from stepwell.engine import KEEP, Address, Keep, Seal, Stored, counted, quoted
from stepwell.errors import InvalidOption, StorageError, StoredDataError, UsageError, VersionChanged
from stepwell.operate import edits
from stepwell.operate.record import (
    Missing,
    RecordView,
    addresses_of,
    parsed_version,
    read,
    resolve,
    shown_field,
    version_text,
    view,
)
from stepwell.operate.records import UnknownBot, bots, bots_with_logs, check_bot

__all__ = ["add"]

#: How many records of a user are counted before they are deleted.
MOST_COUNTED = 10_000
#: The seconds that an edit waits for a handler.
WAIT = 5.0


def add(commands: Commands) -> None:
    """Add the commands."""
    set_ = add_command(
        commands,
        "set",
        "change the state or the fields of a record, or the shared state of a run",
        action=_set,
        example="stepwell set shop 42 --state address email=anna@example.com",
    )
    set_.add_argument("bot", nargs="?", help="the bot's name, or its file: bot.py")
    set_.add_argument("key", nargs="?", help="the key as ls shows it, or the ids in it")
    set_.add_argument("--run", metavar="ID", help="change a run that does not run now, instead of a record")
    set_.add_argument(
        "fields", nargs="*", metavar="FIELD=VALUE", help="a data field and its new value, as JSON or text"
    )
    set_.add_argument(
        "--state", metavar="NAME", help="the new state; checked if BOT is its file; its timer does not start"
    )
    set_.add_argument("--flow", metavar="NAME", help="the new flow, with --state; its history begins anew")
    set_.add_argument("--revision", type=positive, metavar="N", help="the revision of the new flow (default: 1)")
    set_.add_argument("--unset", action="append", default=[], metavar="FIELD", help="remove a field; may be repeated")
    _add_edit(set_)

    clear = add_command(
        commands,
        "clear",
        "end the conversation of a record: delete it, and keep its profile",
        action=_clear,
        example="stepwell clear shop 42 --yes",
    )
    add_key(clear)
    _add_edit(clear)

    forget = add_command(
        commands,
        "forget",
        "delete a record with all traces, or all records of a user or chat in all bots",
        action=_forget,
        example="stepwell forget --user 42 --dry-run",
    )
    forget.add_argument("bot", nargs="?", help="the bot's name or file (with --user or --chat, default: all bots)")
    forget.add_argument("key", nargs="?", help="the key as ls shows it, or the ids in it")
    forget.add_argument("--user", type=int, metavar="ID", help="all records of this user")
    forget.add_argument("--chat", type=int, metavar="ID", help="all records of this chat")
    _add_edit(forget)
    # With --user or --chat it does not wait, and a given time is refused.
    forget.set_defaults(wait=None)


def _add_edit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--version", metavar="VERSION", help="refuse unless the record has this version, as show prints it"
    )
    parser.add_argument("--wait", type=duration, default=WAIT, metavar="TIME", help="wait for a handler (default: 5s)")
    add_yes(parser)


async def _shown(storage: Storage, options: argparse.Namespace) -> tuple[Address, RecordView, Stored]:
    """Return the record to change; raise ``VersionChanged`` if its version is not that of ``--version``."""
    given = None if options.version is None else parsed_version(options.version)
    await check_bot(storage, options.bot)
    address = await resolve(storage, options.bot, options.key)
    stored = await read(storage, address)
    if given is not None and given != stored.version:
        raise VersionChanged(address.text)
    return address, view(storage, address, stored), stored


def _set(options: argparse.Namespace) -> int:
    if options.run is not None:
        return set_shared(options)
    if options.key is None:
        raise InvalidOption("give the bot and the key of a record, or a run with --run ID")
    fields = dict(map(stored_assignment, options.fields))
    if options.flow is not None and options.state is None:
        raise InvalidOption("--flow needs --state, the state in that flow")
    changes = edits.Edit(
        flow=KEEP if options.flow is None else options.flow or None,
        state=KEEP if options.state is None else options.state or None,
        revision=options.revision,
        fields=fields,
        unset=tuple(options.unset),
    )
    changes.check()

    async def work(storage: Storage) -> int:
        address, before, stored = await _shown(storage, options)
        edits.check_edit(storage, address, stored, changes)
        _check_position_fields(options, storage.seal(address), stored)
        _check_state(options, before, changes)
        if not options.json:
            _print_changes(before, changes)
        if options.dry_run:
            return report(options, {"changed": False, "record": asdict(before)}, "nothing was changed (dry run)")
        if not confirmed(options, f"Change {before.bot} {before.key}?"):
            return 1
        await edits.edit(storage, address, changes, version=stored.version, who=user_name(), wait=options.wait)
        after = view(storage, address, await read(storage, address))
        return report(options, {"changed": True, "record": asdict(after)}, f"changed; version {after.version}")

    return with_storage(options, work)


def _check_position_fields(options: argparse.Namespace, seal: Seal, stored: Stored) -> None:
    """Raise ``InvalidOption`` for ``state=paid`` and ``flow=order``, unless the record has a field of this name."""
    for given in options.fields:
        name, _, value = given.partition("=")
        if name in ("flow", "state") and seal.name(name) not in stored.fields:
            raise InvalidOption(
                f"the record has no field {quoted(name)}; did you mean --{name} {value}? Nothing was changed"
            )


def _check_state(options: argparse.Namespace, before: RecordView, changes: edits.Edit) -> None:
    """Raise ``UsageError`` for a flow or state that the bot does not declare, if the bot is given as its file."""
    name = before.flow if isinstance(changes.flow, Keep) else changes.flow
    machine = next((fsm for fsm in options.machines if fsm.bot == options.bot), None)
    if machine is None or name is None or isinstance(changes.state, Keep) or changes.state is None:
        return
    flow = machine.flows.get(name)
    if flow is None:
        known = ", ".join(map(quoted, machine.flows)) or "none"
        raise UsageError(
            f"the bot {quoted(machine.bot)} has no flow {quoted(name)}; its flows are {known}; nothing was changed"
        )
    revision = before.revision if name == before.flow else changes.revision
    # The file does not know the states of another revision.
    problem = flow.problem_with(changes.state) if (revision or 1) == flow.revision else None
    if problem is not None:
        raise UsageError(f"{problem}; nothing was changed")


def _print_changes(before: RecordView, changes: edits.Edit) -> None:
    for name in ("flow", "state"):
        new = getattr(changes, name)
        if new is not KEEP:
            print(f"{name}: {cell(getattr(before, name))} -> {cell(new)}")
    for name, value in changes.fields.items():
        print(f"{cell(name)}: {json_text(before.data.get(name))} -> {json_text(shown_field(before.flow, name, value))}")
    for name in changes.unset:
        print(f"{cell(name)}: {json_text(before.data.get(name))} -> removed")


def _clear(options: argparse.Namespace) -> int:
    return with_storage(options, _deletion(options, edits.clear, "Clear", "cleared"))


def _deletion(options: argparse.Namespace, delete: Callable[..., Awaitable[None]], verb: str, done: str) -> Work:
    async def work(storage: Storage) -> int:
        address, before, stored = await _shown(storage, options)
        if not options.json:
            print_record(before)
        told = {"bot": before.bot, "key": before.key, "version": version_text(stored.version)}
        if options.dry_run:
            return report(options, {done: False, **told}, "nothing was changed (dry run)")
        if not confirmed(options, f"{verb} {before.bot} {before.key}?"):
            return 1
        await delete(storage, address, version=stored.version, who=user_name(), wait=options.wait)
        return report(options, {done: True, **told}, done)

    return work


async def _forget_and_erase(storage: Storage, address: Address, **options: Any) -> None:
    """Delete a record, and its remains on the disk if that is quick."""
    await edits.forget(storage, address, **options)
    await _erase(storage)


async def _erase(storage: Storage) -> None:
    try:
        await storage.erase(only_if_quick=True)
    except (StorageError, StoredDataError) as error:
        note(f"the record was deleted, but not erased from the disk ({error}); call storage.erase()")


def _forget_one(options: argparse.Namespace) -> Work:
    """Return the work of ``forget BOT KEY``, which also deletes the traces of a record that was cleared."""
    delete = _deletion(options, _forget_and_erase, "Forget", "forgotten")

    async def work(storage: Storage) -> int:
        try:
            return await delete(storage)
        except (Missing, UnknownBot):
            addresses = [] if options.version is not None else addresses_of(storage, options.bot, options.key)
            left = [each for each in addresses if await edits.has_traces(storage, each, wait=options.wait)]
            if not left:
                raise
        keys = [each.key for each in left]
        if not options.json:
            print(f"{cell(options.bot)}: the record was deleted; traces: {', '.join(map(cell, keys))}")
        told = {"bot": options.bot, "traces": keys}
        if options.dry_run:
            return report(options, {"forgotten": False, **told}, "nothing was changed (dry run)")
        if not confirmed(options, f"Forget the traces of {options.bot} {', '.join(keys)}?"):
            return 1
        for each in left:
            await edits.forget_traces(storage, each, who=user_name(), wait=options.wait)
        await _erase(storage)
        return report(options, {"forgotten": True, **told}, "forgotten")

    return work


def _forget(options: argparse.Namespace) -> int:
    peers = [each for each in (options.user, options.chat) if each is not None]
    if len(peers) != (0 if options.key is not None else 1):
        raise InvalidOption("give a bot and a key, or --user ID, or --chat ID")
    if peers and options.wait is not None:
        raise InvalidOption("--wait needs a bot and a key: --user and --chat do not wait for handlers")
    options.wait = WAIT if options.wait is None else options.wait
    if not peers:
        return with_storage(options, _forget_one(options))
    if options.version is not None:
        raise InvalidOption("--version needs a bot and a key: it guards one record")

    async def work(storage: Storage) -> int:
        if options.bot is not None and options.bot in await bots(storage):
            names = [options.bot]
        else:
            names = await bots_with_logs(storage)
            if options.bot is not None:
                if options.bot not in names:
                    raise UnknownBot(options.bot, names)
                names = [options.bot]
        peer = {"user": options.user, "chat": options.chat}
        found = {}
        for bot in names:
            addresses = await edits.records_of(storage, bot, **peer, limit=MOST_COUNTED)
            if addresses:
                found[bot] = [each.key for each in addresses]
        if not options.json:
            for bot, keys in found.items():
                print(f"{cell(bot)}: {counted(len(keys), 'record')}: {', '.join(map(cell, keys[:10]))}")
        if options.dry_run or not found:
            text = "nothing was changed (dry run)" if found else "there are no such records"
            return report(options, {"forgotten": 0, "records": found}, text)
        if not confirmed(options, f"Delete {counted(sum(map(len, found.values())), 'record')} with all traces?"):
            return 1
        count = sum([await edits.forget_all(storage, bot, **peer, who=user_name()) for bot in found])
        return report(options, {"forgotten": count, "records": found}, f"deleted {counted(count, 'record')}")

    return with_storage(options, work)
