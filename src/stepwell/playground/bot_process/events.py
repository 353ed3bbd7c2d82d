"""In the bot's process: the events of machines and errors as reports for the playground."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from stepwell.fsm import (
    FSM,
    ConversationExpired,
    DuplicateReceived,
    FSMEvent,
    HandlerFailed,
    TimerFired,
    UpdateReceived,
    keys,
)

__all__ = ["report_of", "traceback_of"]

#: The most characters of a traceback; its end is kept.
MAX_TRACEBACK = 8000
_OWN_CODE = str(Path(__file__).parents[2])


def report_of(fsm: FSM, event: FSMEvent, update_id: int | None) -> dict[str, Any]:
    """Return the report of an event, without a record."""
    parts = keys.parts_of(fsm.key, event.key)
    where = keys.answer_to_key(fsm.key, event.key)
    report: dict[str, Any] = {
        "bot": event.bot,
        "key": None if event.address is None else event.address.key,
        "user": parts.user if type(parts.user) is int else None,
        "chat": where[0] if where else None,
        "at": event.at,
        "duration": getattr(event, "duration", 0.0),
        "update_id": update_id,
    }
    error: BaseException | None = getattr(event, "error", None)
    report["error"] = None if error is None else f"{type(error).__name__}: {error}"[:500]
    report["traceback"] = None if error is None else traceback_of(error)
    match event:
        case UpdateReceived():
            return {"kind": "received", **report}
        case DuplicateReceived():
            return {"kind": "duplicate", **report}
        case HandlerFailed():
            return {"kind": "failed", **report}
        case TimerFired() | ConversationExpired():
            what = "timer fired" if isinstance(event, TimerFired) else "conversation expired"
            return {"kind": "fired", "what": what, "flow": event.flow, "state": event.state, **report}
        case _:
            return {"kind": "record", **report}


def traceback_of(error: BaseException) -> str:
    """Return a traceback that begins with the bot's own code."""
    begin: TracebackType | None = error.__traceback__
    while begin is not None and begin.tb_frame.f_code.co_filename.startswith(_OWN_CODE):
        begin = begin.tb_next
    text = "".join(traceback.format_exception(type(error), error, begin or error.__traceback__))
    return text if len(text) <= MAX_TRACEBACK else f"…{text[-MAX_TRACEBACK:]}"
