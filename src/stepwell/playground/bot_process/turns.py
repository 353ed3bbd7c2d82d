"""In the bot's process: what conversations with turns do, as JSON for the playground."""

from __future__ import annotations

from typing import Any

from stepwell import Storage
from stepwell.engine import Address, Get
from stepwell.turns import Message, QuestionStatus, TurnStatus
from stepwell.turns.engine import WORKING_PARTS, status_of
from stepwell.web.display import as_json

__all__ = ["read_turns"]


async def read_turns(storage: Storage, address: Address) -> dict[str, Any]:
    """Return the status of a conversation."""
    return _json(status_of(storage, address, await storage.perform(Get(address, WORKING_PARTS))))


def _json(status: TurnStatus) -> dict[str, Any]:
    return {
        "state": status.state,
        "turn": status.turn,
        "attempt": status.attempt,
        "started": status.started,
        "stopping": status.stopping,
        "shuts_at": status.shuts_at,
        "messages": [_message(each) for each in status.messages],
        "waiting": [_message(each) for each in status.waiting],
        "tools": [
            as_json({"name": each.name, "replay": each.replay, "outcome": each.outcome}) for each in status.tools
        ],
        "questions": [_question(each) for each in status.questions],
        "unsent": status.unsent,
        "send_at": status.send_at,
        "failed": [
            as_json({"id": each.id, "error": each.error, "attempts": each.attempts, "texts": each.texts})
            for each in status.failed
        ],
    }


def _message(message: Message) -> dict[str, Any]:
    who = "" if message.user is None else str(message.user.first_name or message.user.id)
    return {"who": who, "text": as_json(message.text), "at": message.at, "album": message.album}


def _question(question: QuestionStatus) -> dict[str, Any]:
    return {
        "number": question.number,
        "text": as_json(question.text),
        "options": as_json(question.options),
        "approvers": as_json(question.approvers),
        "deadline": question.deadline,
        "answered": question.answered,
        "choice": as_json(question.choice),
    }
