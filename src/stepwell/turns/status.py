"""What a conversation does now, for people and programs that look from outside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stepwell import Storage
from stepwell.codec.effects import Effect
from stepwell.engine import Address, Seal, Stored, decode_key
from stepwell.turns.message import Message
from stepwell.turns.record import (
    OpenQuestion,
    Running,
    State,
    TurnTable,
    failed_part,
    message_part,
    question_part,
    table_of,
    text_part,
    tool_prefix,
)

__all__ = ["FailedTurn", "QuestionStatus", "ToolStatus", "TurnStatus", "status_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionStatus:
    """A question of a turn.

    Example::

        for question in (await turns.status((42, 0))).questions:
            print(question.number, question.text, question.options)
    """

    number: int
    text: str
    options: tuple[str, ...]
    approvers: tuple[int | str, ...] | None
    reply: bool
    deadline: float | None
    #: The answer; ``None`` while it is open, or if nobody has answered in time.
    choice: str | None
    answered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStatus:
    """A call of a tool in a turn.

    Example::

        for tool in (await turns.status((42, 0))).tools:
            print(tool.name, tool.outcome or "runs, or its outcome is unknown")
    """

    name: str
    replay: str
    outcome: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedTurn:
    """A turn that has failed, with its messages.

    Example::

        for failed in (await turns.status((42, 0))).failed:
            print(failed.id, failed.error)
    """

    id: str
    error: str
    attempts: int
    ended: float
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStatus:
    """What a conversation does now.

    Example::

        status = await turns.status((42, 0))
        print(status.state, status.turn, [message.text for message in status.waiting])
    """

    conversation: Any
    #: ``"collecting"``, ``"running"``, ``"asking"`` or ``"idle"``.
    state: State
    #: The id of the turn; ``None`` if none runs.
    turn: str | None
    attempt: int
    started: float | None
    #: The messages of the turn, and those that wait.
    messages: tuple[Message, ...]
    waiting: tuple[Message, ...]
    #: When the messages that wait are complete.
    shuts_at: float | None
    questions: tuple[QuestionStatus, ...]
    tools: tuple[ToolStatus, ...]
    #: How many calls are not sent yet, and when they are sent again if that has failed.
    unsent: int
    send_at: float | None
    failed: tuple[FailedTurn, ...]
    stopping: bool
    #: The end of what the turn has written so far, a few seconds old.
    text: str
    #: What the turn has cost so far, in dollars, if it has a budget.
    spent: float = 0.0


def status_of(storage: Storage, address: Address, stored: Stored | None) -> TurnStatus:
    """Return the status of a record that was read with its working parts."""
    seal = storage.seal(address)
    table = table_of(seal, stored)
    parts = {} if stored is None else stored.parts or {}
    turn = table.turn
    return TurnStatus(
        conversation=decode_key(address.key)[1],
        state=table.state,
        turn=None if turn is None else turn.id,
        attempt=0 if turn is None else turn.attempt,
        started=None if turn is None else turn.started,
        messages=_messages(seal, parts, () if turn is None else turn.messages),
        waiting=_messages(seal, parts, table.waiting),
        shuts_at=None if table.window is None else table.window.shut,
        questions=() if turn is None else tuple(_question(seal, parts, turn, each) for each in turn.questions),
        tools=() if turn is None else _tools(seal, parts, turn),
        unsent=sum(name.startswith("s:") for name in parts),
        send_at=table.send_at if table.send_failures else None,
        failed=_failed(seal, parts, table),
        stopping=turn is not None and turn.stop is not None,
        text="" if turn is None or (name := text_part(turn.id)) not in parts else seal.value("p", name, parts[name]),
        spent=0.0 if turn is None else turn.cost / 1e9,
    )


def _messages(seal: Seal, parts: dict[str, str], wanted: Any) -> tuple[Message, ...]:
    found = [seal.value("p", name, parts[name]) for each in wanted if (name := message_part(each.seq)) in parts]
    return tuple(Message.of(each["update"], each["at"]) for each in found)


def _question(seal: Seal, parts: dict[str, str], turn: Running, question: OpenQuestion) -> QuestionStatus:
    name = question_part(turn.id, question.number)
    return QuestionStatus(
        number=question.number,
        text=seal.value("p", name, parts[name]) if name in parts else "",
        options=question.options,
        approvers=question.approvers,
        reply=question.reply,
        deadline=question.deadline,
        choice=None if question.answer is None else question.answer.choice,
        answered=question.answer is not None,
    )


def _tools(seal: Seal, parts: dict[str, str], turn: Running) -> tuple[ToolStatus, ...]:
    names = sorted(name for name in parts if name.startswith(tool_prefix(turn.id)))
    effects = [Effect.open(seal, name, parts[name]) for name in names]
    return tuple(ToolStatus(name=each.name, replay=each.replay, outcome=each.outcome) for each in effects)


def _failed(seal: Seal, parts: dict[str, str], table: TurnTable) -> tuple[FailedTurn, ...]:
    kept = [seal.value("p", name, parts[name]) for each in table.failed if (name := failed_part(each)) in parts]
    return tuple(
        FailedTurn(
            id=each["id"], error=each["error"], attempts=each["attempts"], ended=each["ended"],
            texts=tuple(Message.of(message["update"], message["at"]).text for message in each["messages"]),
        )
        for each in kept
    )  # fmt: skip
