"""What becomes of a message, and which messages the next turn gets. Pure functions of the table of a conversation."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from stepwell.engine import Struct, replaced
from stepwell.turns.record import (
    Answer,
    CollectWindow,
    OpenQuestion,
    Running,
    StopReason,
    TurnTable,
    WaitingMessage,
)

__all__ = [
    "POLICIES",
    "OnBusy",
    "Outcome",
    "Rules",
    "admitted",
    "advanced",
    "cut",
    "edited",
    "may_answer",
    "stopped",
    "wanted_reply",
    "with_answer",
]

#: What a message does that arrives while a turn runs.
OnBusy: TypeAlias = Literal["queue", "merge", "steer", "interrupt", "rollback", "reject"]
POLICIES: Final = ("queue", "merge", "steer", "interrupt", "rollback", "reject")
#: What has become of an update.
Outcome: TypeAlias = Literal["taken", "edited", "known", "full", "busy", "answer", "passed"]
#: Seconds in which the rest of an album arrives, and the rest of forwarded messages or of a long text.
ALBUM, REST = 1.3, 1.0


class Rules(Struct, frozen=True):
    """The options of ``Turns`` that decide about messages."""

    on_busy: OnBusy
    collect: float
    at_most: float
    waiting: int
    waiting_bytes: int


def admitted(table: TurnTable, message: WaitingMessage, now: float, rules: Rules) -> tuple[TurnTable, Outcome]:
    """Return the table with a message that has just arrived, and what has become of it."""
    running = table.turn is not None
    if running and rules.on_busy == "reject":
        return table, "busy"
    size = sum(each.size for each in table.waiting) + message.size
    if table.waiting and (len(table.waiting) >= rules.waiting or size > rules.waiting_bytes):
        return table, "full"
    message = replaced(message, seq=table.next, burst=_burst(table, message, rules), at=now)
    turn = table.turn
    if turn is not None and rules.on_busy in ("interrupt", "rollback") and turn.stop is None:
        turn = stopped(turn, "interrupt" if rules.on_busy == "interrupt" else "rollback", now)
    return replaced(
        table, turn=turn, window=_window(table, message, now, rules), waiting=(*table.waiting, message),
        next=table.next + 1,
    ), "taken"  # fmt: skip


def stopped(turn: Running, reason: StopReason, now: float) -> Running:
    """Return a turn that is to be stopped. A runner learns of it by a notice; without one a worker is woken."""
    wakes = turn.asking or turn.paused
    return replaced(turn, stop=reason, check=now if wakes else turn.check)


def cut(turn: Running) -> Running:
    """Return a turn whose text so far is stored to be sent, before another message."""
    return replaced(turn, shown=None, cuts=turn.cuts + 1)


def may_answer(question: OpenQuestion, by: int | str | None) -> bool:
    """Return whether a person may answer a question."""
    return question.approvers is None or by in question.approvers


def wanted_reply(table: TurnTable, by: int | str | None, now: float) -> OpenQuestion | None:
    """Return the question that a message of this person answers, if any."""
    for question in () if table.turn is None else table.turn.questions:
        is_open = question.answer is None and (question.deadline is None or question.deadline > now)
        if question.reply and is_open and may_answer(question, by):
            return question
    return None


def with_answer(
    table: TurnTable, question: OpenQuestion, answer: Answer, now: float, *, update: int | str | None = None
) -> TurnTable:
    """Return the table with an answer to a question of its turn. If the turn waits, a worker is woken.

    ``update``: the id of the update that brought it, if it is a message.
    """
    turn = table.turn
    assert turn is not None
    newer = replaced(question, answer=answer)
    questions = tuple(newer if each.number == newer.number else each for each in turn.questions)
    check = now if turn.asking else turn.check
    replies = turn.replies if update is None else (*turn.replies, update)
    return replaced(table, turn=replaced(turn, questions=questions, answered=True, check=check, replies=replies))


def edited(table: TurnTable, message: WaitingMessage) -> TurnTable | None:
    """Return the table with a newer text of a message that waits; ``None`` if none with its id waits."""
    if message.message_id is None:
        return None
    for place, each in enumerate(table.waiting):
        if each.message_id == message.message_id:
            edits = each.edits if message.id is None else (*each.edits, message.id)
            newer = replaced(each, size=message.size, edits=edits)
            return replaced(table, waiting=(*table.waiting[:place], newer, *table.waiting[place + 1 :]))
    return None


def advanced(table: TurnTable, now: float, rules: Rules, *, turn_id: str, runner: str, check: float) -> TurnTable:
    """Return the table of a conversation whose turn has ended, with its next turn if one can start."""
    table = replaced(table, turn=None)
    chosen = _chosen(table, now, rules)
    if not chosen:
        return table if table.waiting else replaced(table, window=None)
    waiting = table.waiting[len(chosen) :]
    turn = Running(id=chosen[0].again or turn_id, attempt=1, messages=chosen, started=now, runner=runner, check=check)
    return replaced(table, turn=turn, waiting=waiting, window=table.window if waiting else None)


def _chosen(table: TurnTable, now: float, rules: Rules) -> tuple[WaitingMessage, ...]:
    """Return the messages of the next turn: the first ones of those that wait, or none while they are collected."""
    waiting = table.waiting
    if not waiting:
        return ()
    if waiting[0].again is not None:
        return tuple(each for each in waiting if each.again == waiting[0].again)
    first = tuple(each for each in waiting if each.burst == waiting[0].burst) if rules.on_busy == "queue" else waiting
    is_open = table.window is not None and table.window.shut > now
    return () if is_open and len(first) == len(waiting) else first


def _burst(table: TurnTable, message: WaitingMessage, rules: Rules) -> int:
    """Return the burst of a message: that of the last one if they belong together."""
    if not table.waiting:
        return table.next
    last = table.waiting[-1]
    if table.turn is None or rules.on_busy != "queue":
        return last.burst
    together = (message.album is not None and message.album == last.album) or (
        last.more and last.album is None and message.album is None
    )
    return last.burst if together else table.next


def _window(table: TurnTable, message: WaitingMessage, now: float, rules: Rules) -> CollectWindow:
    """Return the window after a message. It is shut when none has followed for a while, at last after ``at_most``."""
    pause = max(rules.collect, ALBUM if message.album is not None else REST if message.more else 0.0)
    if table.window is None or not table.waiting:
        return CollectWindow(now, now + pause)
    latest = table.window.opened + max(rules.at_most, pause)
    return CollectWindow(table.window.opened, max(min(now + pause, latest), now))
