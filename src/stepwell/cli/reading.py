"""The commands that read a storage: ``ls``, ``show``, ``find``, ``timers`` and ``runs``."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from typing import Any

from stepwell.cli.command import Commands, add_command, assignment, duration, positive, with_storage
from stepwell.cli.output import ago, cell, json_text, moment, note, print_json, print_table
from stepwell.errors import InvalidOption
from stepwell.nodes import Run
from stepwell.nodes.engine.monitor import OpenWait
from stepwell.operate.record import RecordView, resolve, show_at
from stepwell.operate.records import RecordFilter, bots, check_bot, counts, listed, timers
from stepwell.operate.runs import OPEN, DamagedRun, check_status, listed_runs, shared_of, show_run, shown_value
from stepwell.storage import ANY, Storage

__all__ = ["add", "print_record", "print_run", "run_json"]

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
    ls.add_argument("bot", nargs="?", help="list the records of this bot (default: all bots with their states)")
    _add_filter(ls)
    ls.add_argument("--damaged", action="store_true", help="only records that cannot be read")
    ls.add_argument("--limit", type=positive, default=50, metavar="N", help="the most records to list (default: 50)")
    ls.add_argument("--after", metavar="KEY", help="continue behind this record")

    show = add_command(commands, "show", "show one record", action=_show, example="stepwell show shop 42,42 --json")
    show.add_argument("bot", help="the bot's name")
    show.add_argument("key", help="the key as ls shows it, or the ids in it: 42,43, or 42 for a private chat")

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
    find.add_argument("--bot", help="search this bot only")
    _add_filter(find)
    find.add_argument("--limit", type=positive, default=50, metavar="N", help="stop after N records (default: 50)")

    timer = add_command(
        commands,
        "timers",
        "list records with a timer, the earliest first",
        action=_timers,
        example="stepwell timers shop --overdue",
    )
    timer.add_argument("bot", nargs="?", help="the bot's name (default: all bots)")
    timer.add_argument("--overdue", action="store_true", help="only timers that are due")
    timer.add_argument("--within", type=duration, metavar="TIME", help="only timers that are due within this time: 1h")
    timer.add_argument("--limit", type=positive, default=50, metavar="N", help="the most timers to list (default: 50)")

    runs = add_command(
        commands,
        "runs",
        "list runs of node flows that have not ended, or show one run",
        action=_runs,
        example="stepwell runs --status failed --flow order",
    )
    runs.add_argument("id", nargs="?", help="show this run, with its errors, waits and shared state")
    runs.add_argument("--flow", metavar="NAME", help="only runs of this flow")
    runs.add_argument(
        "--status",
        action="append",
        metavar="STATUS",
        help="only runs of this status, also finished or cancelled; may be repeated",
    )
    runs.add_argument("--older-than", type=duration, metavar="TIME", help="only runs last written before: 2h")
    runs.add_argument("--limit", type=positive, default=50, metavar="N", help="the most runs to list (default: 50)")


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

    async def overview(storage: Storage) -> int:
        rows = []
        complete = True
        for bot in await bots(storage):
            found, whole = await counts(storage, bot, limit=COUNTED)
            rows += found
            complete = complete and whole
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


def _print_records(found: list[RecordView], options: argparse.Namespace) -> None:
    shown = found[: options.limit]
    after = shown[-1].key if len(found) > options.limit else None
    if options.json:
        print_json({"records": [asdict(each) for each in shown], "after": after})
        return
    _print_table(shown)
    if after is not None:
        note(f"there are more; continue with --after '{after}', or raise --limit")


def _print_table(records: list[RecordView]) -> None:
    several = len({each.bot for each in records}) > 1
    print_table(
        (*(["bot"] if several else []), "key", "flow", "state", "written", "timer", "data"),
        [
            (
                *([each.bot] if several else []),
                each.key,
                each.flow,
                each.state,
                ago(each.written_at),
                ago(each.deadline),
                json_text(each.data) if not each.damage else f"unreadable: {each.damage[0]}",
            )
            for each in records
        ],
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
    _print_fields(
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
            "expired": f"{found.expired} conversations wait for on_expired" if found.expired else None,
            "unsent": f"{found.unsent} answers are not sent yet" if found.unsent else None,
            "held": f"by a handler, for {found.held:.0f} s more" if found.held is not None else None,
            "version": found.version,
        }
    )
    _print_tree("data", found.data)
    if found.profile:
        _print_tree("profile", found.profile)
    for each in found.damage:
        print(f"unreadable  {cell(each)}")


def _print_fields(fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        if value is not None or name in ("flow", "state"):
            print(f"{name:<10}{cell(value)}")


def _print_tree(name: str, tree: Any) -> None:
    print(f"{name:<10}{json_text(tree, indent=2)}".replace("\n", f"\n{'':<10}"))


def _find(options: argparse.Namespace) -> int:
    wanted = _filter(options, fields=dict(assignment(each) for each in options.fields))
    if wanted == RecordFilter(fields={}):
        raise InvalidOption("give a field=value, or a filter such as --user 42")

    async def work(storage: Storage) -> int:
        if options.bot is not None:
            await check_bot(storage, options.bot)
        found: list[RecordView] = []
        looked = total = 0
        progress = sys.stderr.isatty() and not options.json

        def on_look(count: int) -> None:
            nonlocal looked
            looked = count
            if progress:
                print(f"\rlooked at {total + count} records, {len(found)} found ", end="", file=sys.stderr, flush=True)

        complete = True
        for bot in [options.bot] if options.bot is not None else await bots(storage):
            looked = 0
            async for each in listed(storage, bot, wanted, on_look=on_look):
                looked = each.looked
                if len(found) == options.limit:
                    complete = False
                    break
                found.append(each.record)
            total += looked
            if not complete:
                break
        if progress:
            print(file=sys.stderr)
        if options.json:
            print_json({"records": [asdict(each) for each in found], "looked": total, "complete": complete})
            return 0
        _print_table(found)
        if not complete:
            note(f"there are more; looked at {total} records, raise --limit to go on")
        return 0

    return with_storage(options, work)


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
            [
                (
                    each.bot,
                    each.key,
                    each.flow,
                    each.state,
                    ago(each.deadline) + (" ago" if each.deadline <= time.time() else ""),
                )
                for each in found
            ],
        )
        return 0

    return with_storage(options, work)


def _runs(options: argparse.Namespace) -> int:
    if options.id is not None and (options.status or options.flow or options.older_than is not None):
        raise InvalidOption("give the id of a run, or --flow, --status and --older-than for a list")
    statuses = tuple(check_status(each) for each in options.status or ()) or OPEN

    async def one(storage: Storage) -> int:
        run = await show_run(storage, options.id)
        shared = await shared_of(storage, run.flow_id)
        if options.json:
            print_json({**run_json(run), "shared": shared})
        else:
            print_run(run, shared)
        return 0

    async def several(storage: Storage) -> int:
        before = None if options.older_than is None else (storage.clock or time.time)() - options.older_than
        found: list[Run | DamagedRun] = []
        async for run in listed_runs(storage, statuses, flow=options.flow):
            if isinstance(run, Run) and before is not None and run.updated_at > before:
                continue
            found.append(run)
            if len(found) > options.limit:
                break
        shown, more = found[: options.limit], len(found) > options.limit
        if options.json:
            print_json({"runs": [run_json(each) for each in shown], "complete": not more})
            return 0
        print_table(("run", "flow", "status", "node", "written", "why"), [_row(each) for each in shown])
        if more:
            note("there are more; raise --limit, or choose a --flow or --status")
        return 0

    return with_storage(options, several if options.id is None else one)


def run_json(run: Run | DamagedRun) -> dict[str, Any]:
    """Return a run for JSON."""
    if isinstance(run, DamagedRun):
        return {"flow_id": run.flow_id, "damage": run.reason}
    return {
        **asdict(run),
        "errors": [each._asdict() for each in run.errors],
        "progress": {node: each._asdict() for node, each in run.progress.items()},
        "waits": [{**each._asdict(), "question": shown_value(each.question)} for each in run.waits],
    }


def _row(run: Run | DamagedRun) -> tuple[Any, ...]:
    if isinstance(run, DamagedRun):
        return run.flow_id, None, "unreadable", None, None, run.reason
    interrupted = "interrupted; the next worker continues it" if run.interrupted else None
    why = (
        run.reason
        or interrupted
        or (run.errors[0].message if run.errors and run.status in ("failed", "stuck") else None)
    )
    if why is None and run.waits:
        why = _asked(run.waits[0])
    return run.flow_id, run.flow, run.status, run.node, ago(run.updated_at), why


def _asked(wait: OpenWait) -> str | None:
    """Return the question of a wait, or the children that it waits for."""
    if wait.children:
        return f"waits for {', '.join(wait.children)}"
    shown = shown_value(wait.question)
    return shown if isinstance(shown, str | None) else json_text(shown)


def print_run(run: Run, shared: dict[str, Any]) -> None:
    """Print one run for people."""
    _print_fields(
        {
            "run": run.flow_id,
            "flow": run.flow,
            "status": f"{run.status}, interrupted" if run.interrupted else run.status,
            "why": run.reason,
            "node": run.node,
            "branches": ", ".join(run.branches.values()) or None,
            "path": " > ".join(run.path) or None,
            "revision": run.revision,
            "started": moment(run.started_at or None),
            "written": moment(run.updated_at),
            "expires": moment(run.expires_at),
            **{f"batch {node}": f"{done} of {total}" for node, (done, total) in run.progress.items()},
        }
    )
    for wait in run.waits:
        until = "" if wait.deadline is None else f", until {moment(wait.deadline)}"
        print(f"waits     {cell(wait.id or wait.node)}: {cell(_asked(wait))}{until}")
    for error in run.errors:
        print(f"error     {moment(error.at)} at {cell(error.node)}, attempt {error.attempt}: ", end="")
        print(f"{cell(error.type)}: {cell(error.message)}")
        if error is run.errors[0] and error.traceback:
            print("\n".join(f"          {cell(line)}" for line in error.traceback.rstrip().split("\n")))
    _print_tree("shared", shared)
    if run.status == "failed":
        note(f"resume it with: stepwell resume {run.flow_id} module:flow")
    elif run.status == "paused":
        note(f"resume it with: stepwell resume {run.flow_id}")
    elif asked := [wait.id for wait in run.waits if wait.id]:
        note(f"answer it with: stepwell answer {run.flow_id if len(asked) == 1 else 'WAIT_ID'} VALUE")
