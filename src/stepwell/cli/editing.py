"""The commands that change records (``set``, ``clear``, ``forget``) and runs (``resume``, ``cancel``, ...)."""

from __future__ import annotations

import argparse
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict

from stepwell.cli.code import flow_named
from stepwell.cli.command import (
    Commands,
    Work,
    add_command,
    add_yes,
    assignment,
    confirmed,
    duration,
    json_or_text,
    positive,
    user_name,
    with_storage,
)
from stepwell.cli.output import cell, json_text, report
from stepwell.cli.reading import print_record, run_json
from stepwell.codec.values import decode
from stepwell.errors import InvalidOption, Parked, StepwellError, UsageError, VersionChanged
from stepwell.nodes import Run
from stepwell.operate import edits, runs
from stepwell.operate.record import RecordView, parsed_version, read, resolve, shown_field, version_text, view
from stepwell.operate.records import bots, check_bot
from stepwell.record import KEEP, Address, Version
from stepwell.storage import Storage

__all__ = ["add"]

#: How many records of a user are counted before they are deleted.
MOST_COUNTED = 10_000


def add(commands: Commands) -> None:
    """Add the commands."""
    set_ = add_command(
        commands,
        "set",
        "change the state or the fields of a record",
        action=_set,
        example="stepwell set shop 42 --state address email=anna@example.com",
    )
    _add_record(set_)
    set_.add_argument(
        "fields", nargs="*", metavar="FIELD=VALUE", help="a data field and its new value, as JSON or text"
    )
    set_.add_argument("--state", metavar="NAME", help="the new state; its timer does not start")
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
    _add_record(clear)
    _add_edit(clear)

    forget = add_command(
        commands,
        "forget",
        "delete a record with all traces, or all records of a user or chat in all bots",
        action=_forget,
        example="stepwell forget --user 42 --dry-run",
    )
    forget.add_argument("bot", nargs="?", help="the bot's name (with --user or --chat, default: all bots)")
    forget.add_argument("key", nargs="?", help="the key as ls shows it, or the ids in it")
    forget.add_argument("--user", type=int, metavar="ID", help="all records of this user")
    forget.add_argument("--chat", type=int, metavar="ID", help="all records of this chat")
    _add_edit(forget)

    resume = add_command(
        commands,
        "resume",
        "continue a run here, or put failed, stuck and paused runs into the queue for a worker",
        action=_resume,
        example="stepwell resume order-42 flows.py:order",
    )
    resume.add_argument("id", nargs="?", help="the id of the run")
    resume.add_argument(
        "code", nargs="?", metavar="module:flow", help="run it here, with this flow; without it, a worker continues it"
    )
    resume.add_argument(
        "--status", choices=("failed", "stuck", "paused"), help="all runs of this status, instead of one id"
    )
    resume.add_argument("--flow", metavar="NAME", help="with --status: only runs of this flow")
    resume.add_argument("--limit", type=positive, metavar="N", help="with --status: the most runs")
    add_yes(resume)

    cancel = add_command(
        commands,
        "cancel",
        "end runs as cancelled, wherever they run",
        action=_cancel,
        example="stepwell cancel order-42 --reason 'paid twice'",
    )
    cancel.add_argument("ids", nargs="+", metavar="id", help="the id of a run")
    cancel.add_argument("--reason", help="why; stored with the run")
    add_yes(cancel)

    pause = add_command(
        commands,
        "pause",
        "stop runs after the node that they run now, until they are resumed",
        action=_pause,
        example="stepwell pause order-42",
    )
    pause.add_argument("ids", nargs="+", metavar="id", help="the id of a run")
    add_yes(pause)

    answer = add_command(
        commands,
        "answer",
        "answer the question that a run waits on",
        action=_answer,
        example="""stepwell answer order-42 '{"approved": true}'""",
    )
    answer.add_argument("id", help="the id of the run or of its wait")
    answer.add_argument("value", help="the answer, as JSON or text")
    add_yes(answer)


def _add_record(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bot", help="the bot's name")
    parser.add_argument("key", help="the key as ls shows it, or the ids in it: 42,43, or 42 for a private chat")


def _add_edit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--version", metavar="VERSION", help="refuse unless the record has this version, as show prints it"
    )
    parser.add_argument("--wait", type=duration, default=5.0, metavar="TIME", help="wait for a handler (default: 5s)")
    add_yes(parser)


# Records


async def _shown(storage: Storage, options: argparse.Namespace) -> tuple[Address, RecordView, Version]:
    """Return the record to change, and its version; raise ``VersionChanged`` if it is not that of ``--version``."""
    given = None if options.version is None else parsed_version(options.version)
    await check_bot(storage, options.bot)
    address = await resolve(storage, options.bot, options.key)
    stored = await read(storage, address)
    if given is not None and given != stored.version:
        raise VersionChanged(address.text)
    return address, view(storage, address, stored), stored.version


def _set(options: argparse.Namespace) -> int:
    fields = {name: decode(json.dumps(value)) for name, value in map(assignment, options.fields)}
    if options.flow is not None and options.state is None:
        raise InvalidOption("--flow needs --state, the state in that flow")
    changes = edits.Edit(
        flow=KEEP if options.flow is None else options.flow or None,
        state=KEEP if options.state is None else options.state or None,
        revision=options.revision,
        fields=fields,
        unset=tuple(options.unset),
    )
    if not changes.names:
        raise InvalidOption("nothing to change; give FIELD=VALUE, --state or --unset")

    async def work(storage: Storage) -> int:
        address, before, version = await _shown(storage, options)
        if not options.json:
            _print_changes(before, changes)
        if options.dry_run:
            return report(options, {"changed": False, "record": asdict(before)}, "nothing was changed (dry run)")
        if not confirmed(options, f"Change {before.bot} {before.key}?"):
            return 1
        await edits.edit(storage, address, changes, version=version, who=user_name(), wait=options.wait)
        after = view(storage, address, await read(storage, address))
        return report(options, {"changed": True, "record": asdict(after)}, f"changed; version {after.version}")

    return with_storage(options, work)


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
        address, before, version = await _shown(storage, options)
        if not options.json:
            print_record(before)
        told = {"bot": before.bot, "key": before.key, "version": version_text(version)}
        if options.dry_run:
            return report(options, {done: False, **told}, "nothing was changed (dry run)")
        if not confirmed(options, f"{verb} {before.bot} {before.key}?"):
            return 1
        await delete(storage, address, version=version, who=user_name(), wait=options.wait)
        return report(options, {done: True, **told}, done)

    return work


def _forget(options: argparse.Namespace) -> int:
    peers = [each for each in (options.user, options.chat) if each is not None]
    if len(peers) != (0 if options.key is not None else 1):
        raise InvalidOption("give a bot and a key, or --user ID, or --chat ID")
    if not peers:
        return with_storage(options, _deletion(options, edits.forget, "Forget", "forgotten"))
    if options.version is not None:
        raise InvalidOption("--version needs a bot and a key: it guards one record")

    async def work(storage: Storage) -> int:
        if options.bot is not None:
            await check_bot(storage, options.bot)
        names = [options.bot] if options.bot is not None else await bots(storage)
        peer = {"user": options.user, "chat": options.chat}
        found = {}
        for bot in names:
            addresses = await edits.records_of(storage, bot, **peer, limit=MOST_COUNTED)
            if addresses:
                found[bot] = [each.key for each in addresses]
        if not options.json:
            for bot, keys in found.items():
                print(f"{cell(bot)}: {len(keys)} records: {', '.join(map(cell, keys[:10]))}")
        if options.dry_run or not found:
            text = "nothing was changed (dry run)" if found else "there are no such records"
            return report(options, {"forgotten": 0, "records": found}, text)
        if not confirmed(options, f"Delete these {sum(map(len, found.values()))} records and all traces of them?"):
            return 1
        count = sum([await edits.forget_all(storage, bot, **peer, who=user_name()) for bot in found])
        return report(options, {"forgotten": count, "records": found}, f"deleted {count} records")

    return with_storage(options, work)


# Runs


def _resume(options: argparse.Namespace) -> int:
    if (options.id is None) == (options.status is None):
        raise InvalidOption("give the id of a run, or --status failed, stuck or paused")
    if options.id is not None and (options.flow is not None or options.limit is not None):
        raise InvalidOption("--flow and --limit need --status")

    async def many(storage: Storage) -> int:
        found = [
            run async for run in runs.listed_runs(storage, (options.status,), flow=options.flow) if isinstance(run, Run)
        ][: options.limit]
        ids = [run.flow_id for run in found]
        if not options.json:
            for run in found:
                print(f"{cell(run.flow_id)}: {cell(run.flow)} {run.status} at {cell(run.node)}")
        if options.dry_run or not found:
            return report(options, {"resumed": [], "runs": ids}, "nothing was changed")
        if not confirmed(options, f"Put these {len(found)} runs into the queue again?"):
            return 1
        done = [run.flow_id for run in found if await runs.retry(storage, run, who=user_name())]
        text = f"put {len(done)} runs into the queue; a worker continues them"
        return report(options, {"resumed": done, "runs": ids}, text)

    async def one(storage: Storage) -> int:
        run = await runs.show_run(storage, options.id)
        if options.code is None and run.status not in ("failed", "stuck", "paused"):
            here = f" To continue it here, give its flow: stepwell resume {run.flow_id} module:flow"
            raise UsageError(
                f"run {run.flow_id!r} is {run.status}; only failed, stuck and paused runs can be put into the queue."
                + ("" if run.status in ("cancelled", "finished") else here)
            )
        flow = None if options.code is None else flow_named(options.code, run.flow)
        if not options.json:
            print(f"{cell(run.flow_id)}: {cell(run.flow)} {run.status} at {cell(run.node)}")
        if options.dry_run:
            return report(options, {"resumed": False, "run": run_json(run)}, "nothing was changed (dry run)")
        if not confirmed(options, f"Resume run {run.flow_id}?"):
            return 1
        if flow is None:
            done = await runs.retry(storage, run, who=user_name())
            text = "put into the queue; a worker continues it" if done else "another process resumes it"
            return report(options, {"resumed": done, "run": run_json(await runs.show_run(storage, run.flow_id))}, text)
        try:
            shared = await flow.resume(options.id, storage=storage)
        except Parked as parked:
            waiting = run_json(await runs.show_run(storage, run.flow_id))
            return report(
                options, {"resumed": True, "run": waiting}, f"the run goes on, and waits: {cell(str(parked))}"
            )
        except StepwellError:
            raise
        except Exception as error:
            raise UsageError(f"run {run.flow_id!r} failed again: {type(error).__name__}: {error}") from error
        result = runs.shown_value(shared)
        text = f"finished: {json_text(result, indent=2)}"
        return report(options, {"resumed": True, "finished": True, "shared": result}, text)

    return with_storage(options, many if options.id is None else one)


def _cancel(options: argparse.Namespace) -> int:
    async def cancel(storage: Storage, flow_id: str) -> Run:
        return await runs.cancel(storage, flow_id, options.reason, who=user_name())

    return with_storage(options, _stopping(options, cancel, "Cancel", "cancelled"))


def _pause(options: argparse.Namespace) -> int:
    async def pause(storage: Storage, flow_id: str) -> Run:
        return await runs.pause(storage, flow_id, who=user_name())

    return with_storage(options, _stopping(options, pause, "Pause", "paused"))


def _stopping(
    options: argparse.Namespace, stop: Callable[[Storage, str], Awaitable[Run]], verb: str, done: str
) -> Work:
    async def work(storage: Storage) -> int:
        found = [await runs.show_run(storage, each) for each in dict.fromkeys(options.ids)]
        if not options.json:
            for run in found:
                print(f"{cell(run.flow_id)}: {cell(run.flow)} {run.status} at {cell(run.node)}")
        ids = [run.flow_id for run in found]
        if options.dry_run:
            return report(options, {done: [], "runs": ids}, "nothing was changed (dry run)")
        if not confirmed(options, f"{verb} {'this run' if len(ids) == 1 else f'these {len(ids)} runs'}?"):
            return 1
        for each in ids:
            await stop(storage, each)
        return report(options, {done: ids, "runs": ids}, f"{done} {len(ids)} {'run' if len(ids) == 1 else 'runs'}")

    return work


def _answer(options: argparse.Namespace) -> int:
    value = decode(json.dumps(json_or_text(options.value)))

    async def work(storage: Storage) -> int:
        run = await runs.show_run(storage, options.id)
        wait = runs.wait_of(run, options.id)
        question = runs.shown_value(wait.question)
        if not options.json:
            print(f"{cell(run.flow_id)} asks at {cell(wait.node)}: {json_text(question)}")
        told = {"run": run.flow_id, "wait": wait.id, "question": question}
        if options.dry_run:
            return report(options, {"answered": False, **told}, "nothing was changed (dry run)")
        if not confirmed(options, "Answer it?"):
            return 1
        # The id of the wait that was shown: the run may ask another question meanwhile.
        await runs.answer(storage, wait.id, value, who=user_name())
        return report(options, {"answered": True, **told}, "answered; a worker continues the run")

    return with_storage(options, work)
