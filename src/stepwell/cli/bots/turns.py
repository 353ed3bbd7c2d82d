"""``stepwell turns``: the conversations of bots with an agent, and their turns."""

from __future__ import annotations

import argparse
import shlex
import time
from dataclasses import asdict
from typing import Any

from stepwell import Storage
from stepwell.cli.arguments import positive
from stepwell.cli.command import Commands, add_command, add_yes, confirmed, with_storage
from stepwell.cli.output import (
    NOT_FOUND_OR_CHANGED,
    ago,
    cell,
    moment,
    note,
    print_fields,
    print_json,
    print_table,
    report,
)
from stepwell.cli.records.search import Search
from stepwell.cli.writes import user_name
from stepwell.engine import counted, masked_text
from stepwell.errors import InvalidOption
from stepwell.operate import turns
from stepwell.operate.records import check_bot
from stepwell.operate.turns import STATES, ConversationView, listed_conversations, show_conversation
from stepwell.turns import Decided, FailedTurn
from stepwell.turns.engine import budgets_in

__all__ = ["add"]

HEADERS = ("bot", "conversation", "state", "turn", "attempt", "since", "waiting", "asks", "failed")
#: What has become of an answer that was not taken.
_REFUSED = {
    Decided.ANSWERED_BEFORE: "the question was answered already",
    Decided.TOO_LATE: "there is no open question",
    Decided.NOT_ALLOWED: "only its approvers may answer; pass the id of one: --by ID",
}


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "turns",
        "list conversations with an agent, or show one; stop its turn, answer its question, retry failed turns",
        action=_turns,
        example="stepwell turns bot.py --failed --retry",
    )
    parser.add_argument("bot", nargs="?", help="the bot's name, or its file: bot.py (default: all bots)")
    parser.add_argument(
        "conversation", nargs="?", help="show this one: its key as the list shows it, or 42 for a private chat"
    )
    parser.add_argument("--state", choices=STATES, help="only conversations in this state")
    parser.add_argument("--failed", action="store_true", help="only conversations with failed turns")
    parser.add_argument("--budgets", action="store_true", help="list what each payer has spent of a budget instead")
    parser.add_argument("--limit", type=positive, default=50, metavar="N", help="the most to list (default: 50)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--stop", action="store_true", help="stop the turn of the conversation")
    what.add_argument("--decide", metavar="ANSWER", help="answer its question: with an option, or a text for a reply")
    what.add_argument("--retry", action="store_true", help="let the messages of failed turns wait for a turn again")
    what.add_argument("--drop", action="store_true", help="remove failed turns with their messages")
    parser.add_argument("--turn", metavar="ID", help="with --retry and --drop: only this failed turn")
    parser.add_argument("--question", type=positive, metavar="N", help="with --decide: its number, if several are open")
    parser.add_argument("--by", metavar="ID", help="with --decide: the id of the approver who answers")
    add_yes(parser)


def _turns(options: argparse.Namespace) -> int:
    one = options.conversation is not None
    if (options.stop or options.decide is not None) and not one:
        raise InvalidOption("--stop and --decide need a bot and a conversation: stepwell turns BOT CONVERSATION --stop")
    if one and (options.state is not None or options.failed):
        raise InvalidOption("give a conversation, or --state and --failed for a list")
    if (options.retry or options.drop) and options.bot is None:
        raise InvalidOption("--retry and --drop need a bot: stepwell turns BOT --failed --retry")
    if options.turn is not None and not (options.retry or options.drop):
        raise InvalidOption("--turn needs --retry or --drop")
    if options.decide is None and (options.question is not None or options.by is not None):
        raise InvalidOption("--question and --by need --decide")

    async def work(storage: Storage) -> int:
        if options.bot is not None:
            await check_bot(storage, options.bot)
        if options.budgets:
            return await _budgets(options, storage)
        if options.retry or options.drop:
            return await _again(options, storage)
        if not one:
            return await _list(options, storage)
        view = await show_conversation(storage, options.bot, options.conversation)
        if options.stop:
            return await _stop(options, storage, view)
        if options.decide is not None:
            return await _decide(options, storage, view)
        if options.json:
            print_json(view.as_json())
        else:
            _print(view)
        return 0

    return with_storage(options, work)


async def _list(options: argparse.Namespace, storage: Storage) -> int:
    search = Search(options, "conversations", HEADERS)
    with search.printed():
        found = listed_conversations(
            storage, options.bot, state=options.state, failed=options.failed, on_look=search.look
        )
        async for each in found:
            if not search.add(each.conversation.as_json(), _row(each.conversation), each.looked):
                break
    return 0


async def _budgets(options: argparse.Namespace, storage: Storage) -> int:
    now = (storage.clock or time.time)()
    found = [each async for each in budgets_in(storage, now, options.bot)]
    if options.json:
        print_json({"budgets": [{**asdict(each), "ends": each.ends.timestamp()} for each in found]})
        return 0
    rows = [
        (str(each.payer), f"{each.spent:.4f}", f"{each.reserved:.4f}", f"{each.limit:g}", moment(each.ends.timestamp()))
        for each in sorted(found, key=lambda each: -each.spent)
    ]
    print_table(("payer", "spent", "reserved", "of", "until"), rows[: options.limit])
    return 0


async def _stop(options: argparse.Namespace, storage: Storage, view: ConversationView) -> int:
    turn = None if view.status is None else view.status.turn
    if turn is None:
        note(f"stepwell: no turn runs in {cell(view.key)}")
        return NOT_FOUND_OR_CHANGED
    told = {"conversation": view.key, "turn": turn}
    if not options.json:
        print_table(HEADERS, [_row(view)])
    if options.dry_run:
        return report(options, {"stopped": False, **told}, "nothing was changed (dry run)")
    if not confirmed(options, "Stop this turn?"):
        return 1
    if not await turns.stop(storage, view, who=user_name()):
        note(f"stepwell: the turn {turn} has ended meanwhile")
        return NOT_FOUND_OR_CHANGED
    return report(options, {"stopped": True, **told}, f"stopped the turn {turn}")


async def _decide(options: argparse.Namespace, storage: Storage, view: ConversationView) -> int:
    if not options.json:
        for line in _questions(view):
            print(line)
    told = {"conversation": view.key, "answer": options.decide}
    if options.dry_run:
        return report(options, {"answered": False, **told}, "nothing was changed (dry run)")
    if not confirmed(options, f"Answer {cell(options.decide)}?"):
        return 1
    by = int(options.by) if options.by is not None and options.by.lstrip("-").isdecimal() else options.by
    decided = await turns.decide(storage, view, options.decide, question=options.question, by=by, who=user_name())
    if not decided:
        note(f"stepwell: nothing was changed: {_REFUSED[decided]}")
        return NOT_FOUND_OR_CHANGED
    return report(options, {"answered": True, **told}, "answered; a worker continues the turn")


async def _again(options: argparse.Namespace, storage: Storage) -> int:
    """Retry or drop failed turns."""
    if options.conversation is not None:
        views = [await show_conversation(storage, options.bot, options.conversation)]
    else:
        views = [each.conversation async for each in listed_conversations(storage, options.bot, failed=True)]
    found = [
        (view, each)
        for view in views
        for each in (() if view.status is None else view.status.failed)
        if options.turn in (None, each.id)
    ][: options.limit]
    verb, done = ("Drop", "dropped") if options.drop else ("Retry", "retried")
    if not options.json:
        print_table(("conversation", "turn", "ended", "attempts", "error"), [_failed_row(*each) for each in found])
    ids = [each.id for _, each in found]
    if options.turn is not None and not found:
        note(f"stepwell: there is no failed turn {cell(options.turn)}")
        return NOT_FOUND_OR_CHANGED
    if options.dry_run or not found:
        text = "nothing was changed" + (" (dry run)" if options.dry_run else "")
        return report(options, {done: [], "turns": ids}, text)
    if not confirmed(options, f"{verb} {counted(len(found), 'failed turn')}?"):
        return 1
    change = turns.drop if options.drop else turns.retry
    changed = [each.id for view, each in found if await change(storage, view, each, who=user_name())]
    return report(options, {done: changed, "turns": ids}, f"{done} {counted(len(changed), 'failed turn')}")


def _row(view: ConversationView) -> tuple[Any, ...]:
    status = view.status
    if status is None:
        return view.bot, view.key, "unreadable", None, None, None, None, view.damage, None
    asked = next((masked_text(each.text) for each in status.questions if not each.answered), None)
    state = f"{status.state}, stopping" if status.stopping else status.state
    return (
        view.bot, view.key, state, status.turn, status.attempt or None, ago(view.since), len(status.waiting), asked,
        len(status.failed),
    )  # fmt: skip


def _failed_row(view: ConversationView, failed: FailedTurn) -> tuple[Any, ...]:
    return view.key, failed.id, f"{ago(failed.ended)} ago", failed.attempts, masked_text(failed.error)


def _questions(view: ConversationView) -> list[str]:
    lines = []
    for each in () if view.status is None else view.status.questions:
        by = "" if each.approvers is None else f", by {', '.join(map(str, each.approvers))}"
        until = "" if each.deadline is None or each.answered else f", until {moment(each.deadline)}"
        answer = f"answered {each.choice or 'by nobody'}" if each.answered else " / ".join(each.options) or "a message"
        lines.append(f"asks      {each.number}. {cell(masked_text(each.text))} ({cell(answer)}{cell(by)}{until})")
    return lines


def _print(view: ConversationView) -> None:
    """Print one conversation for people."""
    status = view.status
    print_fields({"bot": view.bot, "key": view.key, "name": view.name, "written": moment(view.written_at)})
    if status is None:
        print(f"unreadable  {cell(view.damage)}")
        return
    print_fields(
        {
            "state": f"{status.state}, stopping" if status.stopping else status.state,
            "turn": None if status.turn is None else f"{status.turn}, attempt {status.attempt}",
            "spent": f"{status.spent:.4f} USD" if status.spent else None,
            "started": None if status.started is None else moment(status.started),
            "complete": None if not status.waiting or status.shuts_at is None else moment(status.shuts_at),
            "unsent": None
            if not status.unsent
            else f"{counted(status.unsent, 'call')}, again {moment(status.send_at)}",
        }
    )
    for name, messages in (("message", status.messages), ("waiting", status.waiting)):
        for message in messages:
            who = "" if message.user is None else f" of {message.user.id}"
            print(f"{name:<9} {cell(masked_text(message.text))} ({ago(message.at)} ago{who})")
    for tool in status.tools:
        print(f"tool      {cell(tool.name)}: {cell(tool.outcome or 'runs, or its outcome is unknown')}")
    for line in _questions(view):
        print(line)
    for failed in status.failed:
        attempts = counted(failed.attempts, "attempt")
        print(f"failed    {failed.id}, {ago(failed.ended)} ago, {attempts}: {cell(masked_text(failed.error))}")
        for text in failed.texts:
            print(f"          {cell(masked_text(text))}")
    where = f"stepwell turns {shlex.quote(view.bot)} {shlex.quote(view.key)}"
    if status.failed:
        note(f"retry it with: {where} --retry")
    elif any(not each.answered for each in status.questions):
        note(f"answer it with: {where} --decide ANSWER")
