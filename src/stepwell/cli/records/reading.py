"""``stepwell ls``, ``show`` and ``find``: the records of a storage."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from stepwell import Storage
from stepwell.cli.arguments import duration, positive
from stepwell.cli.command import Commands, add_command, add_key, with_storage
from stepwell.cli.output import (
    ago,
    cell,
    due,
    json_text,
    moment,
    note,
    print_fields,
    print_json,
    print_table,
    print_tree,
)
from stepwell.cli.records.search import Search
from stepwell.engine import ANY, counted, decode_key, quoted
from stepwell.errors import InvalidKey, InvalidOption, StoredDataError
from stepwell.operate.counts import state_counts
from stepwell.operate.fields import searched_field
from stepwell.operate.record import RecordView, resolve, show_at
from stepwell.operate.records import RecordFilter, bots, check_bot, listed

__all__ = ["add", "print_record"]

#: How many records ``ls`` reads for the counts of one bot.
COUNTED = 100_000


def add(commands: Commands) -> None:
    """Add the commands."""
    ls = add_command(
        commands,
        "ls",
        "list the bots and how many records each state has, or the records of a bot",
        action=_ls,
        example="stepwell ls shop --state address --older-than 2h",
    )
    ls.add_argument(
        "bot",
        nargs="?",
        help="list the records of this bot, given by its name or file (default: all bots with their states)",
    )
    _add_filter(ls)
    ls.add_argument("--damaged", action="store_true", help="only records that cannot be read")
    ls.add_argument("--limit", type=positive, default=50, metavar="N", help="the most records to list (default: 50)")
    ls.add_argument("--after", metavar="KEY", help="continue behind this record")

    show = add_command(commands, "show", "show one record", action=_show, example="stepwell show shop 42,42 --json")
    add_key(show)

    find = add_command(
        commands,
        "find",
        "find records by the values of their fields, in one bot or all",
        action=_find,
        example="stepwell find email=anna@example.com --bot shop",
    )
    find.add_argument(
        "fields",
        nargs="*",
        metavar="FIELD=VALUE",
        help="a data field and its value, as JSON or text; a path for a field within: address.city=Rome",
    )
    find.add_argument("--bot", help="search this bot only, given by its name or file")
    _add_filter(find)
    find.add_argument("--limit", type=positive, default=50, metavar="N", help="stop after N records (default: 50)")


def _add_filter(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--flow", metavar="NAME", help="only records in this flow; an empty name: in no flow")
    parser.add_argument("--state", metavar="NAME", help="only records in this state; an empty name: in no state")
    parser.add_argument("--user", type=int, metavar="ID", help="only records of this user")
    parser.add_argument("--chat", type=int, metavar="ID", help="only records of this chat")
    parser.add_argument("--tag", action="append", default=[], help="only records with this tag; may be repeated")
    parser.add_argument("--older-than", type=duration, metavar="TIME", help="only records last written before: 2h")


def _filter(options: argparse.Namespace, **others: Any) -> RecordFilter:
    tags = [f"{name}:{each}" for name in ("user", "chat") if (each := getattr(options, name)) is not None]
    return RecordFilter(
        flow=ANY if options.flow is None else options.flow or None,
        state=ANY if options.state is None else options.state or None,
        tags=(*tags, *options.tag),
        older_than=options.older_than,
        **others,
    )


def _ls(options: argparse.Namespace) -> int:
    wanted = _filter(options, damaged=options.damaged)
    if options.bot is None and (wanted != RecordFilter() or options.after is not None):
        raise InvalidOption("a filter needs a bot: stepwell ls BOT --state ...; stepwell find searches all bots")

    if options.after is not None:
        _check_key(options.after)

    async def overview(storage: Storage) -> int:
        rows, complete = await state_counts(storage, limit=COUNTED)
        if options.json:
            print_json({"states": [each._asdict() for each in rows], "complete": complete})
            return 0
        print_table(
            ("bot", "flow", "state", "records", "oldest"),
            [(row.bot, row.flow, row.state, row.records, ago(row.oldest)) for row in rows],
        )
        if not complete:
            note(f"counted the first {COUNTED} records of each bot only")
        return 0

    async def records(storage: Storage) -> int:
        await check_bot(storage, options.bot)
        found = []
        async for each in listed(storage, options.bot, wanted, after=options.after):
            found.append(each.record)
            if len(found) > options.limit:
                break
        _print_records(found, options)
        return 0

    return with_storage(options, overview if options.bot is None else records)


def _check_key(text: str) -> None:
    try:
        decode_key(text)
    except StoredDataError:
        raise InvalidKey(
            f"--after {quoted(text)} is not a key; write it as stepwell ls shows it, such as '(42,42)'"
        ) from None


def _print_records(found: list[RecordView], options: argparse.Namespace) -> None:
    shown = found[: options.limit]
    after = shown[-1].key if len(found) > options.limit else None
    if options.json:
        print_json({"records": [asdict(each) for each in shown], "after": after})
        return
    print_table(_HEADERS, map(_cells, shown))
    if after is not None:
        note(f"there are more; continue with --after '{after}', or raise --limit")


_HEADERS = ("key", "flow", "state", "written", "timer", "data")


def _cells(record: RecordView) -> tuple[Any, ...]:
    return (
        record.key,
        record.flow,
        record.state,
        ago(record.written_at),
        due(record.deadline),
        f"unreadable: {record.damage[0]}" if record.damage else json_text(record.data),
    )


def _show(options: argparse.Namespace) -> int:
    async def work(storage: Storage) -> int:
        await check_bot(storage, options.bot)
        address = await resolve(storage, options.bot, options.key)
        found = await show_at(storage, address)
        if options.json:
            print_json(asdict(found))
        else:
            print_record(found)
        return 0

    return with_storage(options, work)


def print_record(found: RecordView) -> None:
    """Print one record for people."""
    waiting = ", ".join(f"{flow}/{state}" for flow, state in found.waiting)
    print_fields(
        {
            "bot": found.bot,
            "key": found.key,
            "flow": found.flow,
            "state": found.state,
            "revision": found.revision,
            "history": " > ".join(found.history) or None,
            "waiting": waiting or None,
            "tags": " ".join(found.tags) or None,
            "written": moment(found.written_at),
            "timer": moment(found.deadline),
            "expires": moment(found.expires_at),
            "expired": f"{counted(found.expired, 'conversation waits', 'conversations wait')} for on_expired"
            if found.expired
            else None,
            "unsent": f"{counted(found.unsent, 'answer is', 'answers are')} not sent yet" if found.unsent else None,
            "held": f"by a handler, for {found.held:.0f} s more" if found.held is not None else None,
            "version": found.version,
        }
    )
    print_tree("data", found.data)
    if found.profile:
        print_tree("profile", found.profile)
    for each in found.damage:
        print(f"unreadable  {cell(each)}")


def _find(options: argparse.Namespace) -> int:
    wanted = _filter(options, fields=dict(searched_field(each) for each in options.fields))
    if wanted == RecordFilter(fields={}):
        raise InvalidOption("give a field=value, or a filter such as --user 42")

    async def work(storage: Storage) -> int:
        if options.bot is not None:
            await check_bot(storage, options.bot)
        names = [options.bot] if options.bot is not None else await bots(storage)
        search = Search(options, "records", _HEADERS if options.bot is not None else ("bot", *_HEADERS))
        with search.printed():
            for bot in names:
                async for each in listed(storage, bot, wanted, on_look=search.look):
                    row = _cells(each.record) if options.bot is not None else (bot, *_cells(each.record))
                    if not search.add(asdict(each.record), row, each.looked):
                        break
                search.next_list()
                if search.enough:
                    break
        return 0

    return with_storage(options, work)
