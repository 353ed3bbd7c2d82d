"""``stepwell runs``: the runs of node flows."""

from __future__ import annotations

import argparse
import shlex
import time
from dataclasses import asdict
from typing import Any

from stepwell import Storage
from stepwell.cli.arguments import duration, positive
from stepwell.cli.command import Commands, add_command, with_storage
from stepwell.cli.output import (
    ago,
    cell,
    json_text,
    moment,
    note,
    print_fields,
    print_json,
    print_table,
    print_tree,
    span,
)
from stepwell.cli.records.search import Search
from stepwell.errors import InvalidOption
from stepwell.nodes import HistoryEntry, Run, RunHistory
from stepwell.nodes.engine import OpenWait
from stepwell.operate.fields import searched_field
from stepwell.operate.run_list import OPEN, DamagedRun, RunFilter, check_status, listed_runs
from stepwell.operate.runs import reason_of, shared_of, show_history, show_run, shown_value

__all__ = ["add", "run_json"]

#: How many of the last nodes of a run are printed.
MOST_ENTRIES = 50


def add(commands: Commands) -> None:
    """Add the command."""
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
    runs.add_argument(
        "--tag", action="append", default=[], help="only runs with this tag: customer=7, or parent:ID for child runs"
    )
    runs.add_argument(
        "--field",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="only runs with this value in their shared state, as JSON or text; may be repeated",
    )
    runs.add_argument("--after", metavar="POSITION", help="continue a list, with the position that --json shows")
    runs.add_argument("--limit", type=positive, default=50, metavar="N", help="the most runs to list (default: 50)")


def _runs(options: argparse.Namespace) -> int:
    wanted = RunFilter(
        statuses=tuple(check_status(each) for each in options.status or ()) or OPEN,
        flow=options.flow,
        tags=tuple(options.tag),
        older_than=options.older_than,
        fields=dict(map(searched_field, options.field)),
    )
    if options.id is not None and (wanted != RunFilter(fields={}) or options.after is not None):
        raise InvalidOption("give the id of a run, or options such as --flow and --status for a list")

    async def one(storage: Storage) -> int:
        run = await show_run(storage, options.id)
        shared = await shared_of(storage, run.flow_id)
        history = await show_history(storage, run.flow_id)
        if options.json:
            told = {"history": [asdict(each) for each in history], "history_dropped": history.dropped}
            print_json({**run_json(run), **told, "shared": shared})
        else:
            _print_run(run, shared, history)
        return 0

    async def several(storage: Storage) -> int:
        search = Search(options, "runs", ("run", "flow", "status", "node", "written", "why"))
        search.others["after"] = None
        cursor = ""
        with search.printed():
            async for each in listed_runs(storage, wanted, after=options.after, on_look=search.look):
                if not search.add(run_json(each.run), _row(each.run), each.looked):
                    search.others["after"] = cursor
                    break
                cursor = each.cursor
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
        "undone": [each._asdict() for each in run.undone],
        "waits": [{**each._asdict(), "question": shown_value(each.question)} for each in run.waits],
    }


def _row(run: Run | DamagedRun) -> tuple[Any, ...]:
    if isinstance(run, DamagedRun):
        return run.flow_id, None, "unreadable", None, None, run.reason
    why = reason_of(run)
    if why is None and run.waits:
        why = _asked(run.waits[0])
    return run.flow_id, run.flow, run.status, run.node, ago(run.updated_at), why


def _asked(wait: OpenWait) -> str | None:
    """Return the question of a wait, or the children that it waits for."""
    if wait.children:
        return f"waits for {', '.join(wait.children)}"
    shown = shown_value(wait.question)
    return shown if isinstance(shown, str | None) else json_text(shown)


def _print_history(history: RunHistory) -> None:
    """Print the last nodes of a run for people."""
    left_out = history.dropped + max(len(history) - MOST_ENTRIES, 0)
    if left_out:
        print(f"history   the last {MOST_ENTRIES} nodes; {left_out} older ones are left out (--json shows more)")
    headers = ("node", "visit", "began", "took", "then", "why")
    print_table(headers, [_history_row(each) for each in history[-MOST_ENTRIES:]])


def _history_row(entry: HistoryEntry) -> tuple[Any, ...]:
    idle = {"queued": entry.queued, "paused": entry.paused, "waited": entry.waited, "slept": entry.slept}
    why = [f"{what} {_seconds(seconds)}" for what, seconds in idle.items() if seconds >= 0.001]
    if entry.answered_by is not None:
        why.append(f"answered by {entry.answered_by}")
    if entry.attempts > 1:
        why.append(f"{entry.attempts} attempts")
    if entry.error is not None:
        why.append(": ".join(entry.error))
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(entry.started_at))
    return entry.node, entry.visit, began, _seconds(entry.duration), entry.action, ", ".join(why) or None


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 600 else span(seconds)


def _print_run(run: Run, shared: dict[str, Any], history: RunHistory) -> None:
    """Print one run for people."""
    print_fields(
        {
            "run": run.flow_id,
            "flow": run.flow,
            "status": run.status,
            "why": reason_of(run),
            "node": run.node,
            "branches": ", ".join(run.branches.values()) or None,
            "path": " > ".join(run.path) or None,
            "undone": " > ".join(each.node for each in run.undone) or None,
            "revision": run.revision,
            "tags": ", ".join(f"{name}={value}" for name, value in run.tags.items()) or None,
            "started": moment(run.started_at or None),
            "written": moment(run.updated_at),
            "expires": moment(run.expires_at),
            **{f"batch {node}": f"{done} of {total}" for node, (done, total) in run.progress.items()},
        }
    )
    for wait in run.waits:
        until = "" if wait.deadline is None else f", until {moment(wait.deadline)}"
        accepts = "" if wait.accepts is None else f", accepts {json_text(wait.accepts)}"
        since = "" if wait.since is None else f", since {moment(wait.since)}"
        print(f"waits     {cell(wait.id or wait.node)}: {cell(_asked(wait))}{since}{until}{accepts}")
    for error in run.errors:
        print(f"error     {moment(error.at)} at {cell(error.node)}, attempt {error.attempt}: ", end="")
        print(f"{cell(error.type)}: {cell(error.message)}")
        if error is run.errors[0] and error.traceback:
            print("\n".join(f"          {cell(line)}" for line in error.traceback.rstrip().split("\n")))
    if history:
        _print_history(history)
    print_tree("shared", shared)
    if run.status == "failed":
        note(f"resume it with: stepwell resume {shlex.quote(run.flow_id)} module:flow")
    elif run.status == "paused":
        note(f"resume it with: stepwell resume {shlex.quote(run.flow_id)}")
    elif asked := [wait.id for wait in run.waits if wait.id]:
        note(f"answer it with: stepwell answer {shlex.quote(run.flow_id) if len(asked) == 1 else 'WAIT_ID'} VALUE")
