"""In the bot's process: reports its machines, and what they do with each update, to the playground.

``install`` is called before the bot's own code. A reporter runs on the event loop of its machine, because the
storage does too.
"""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from stepwell.codec import decode_key
from stepwell.errors import StepwellError
from stepwell.fsm import (
    FSM,
    Committed,
    ConversationExpired,
    DuplicateReceived,
    FSMEvent,
    HandlerFailed,
    MachineReady,
    TimerFired,
    Update,
    UpdateReceived,
    keys,
    subscribe,
)
from stepwell.playground.bot_records import clear_record, edit_record, read_record, restore_record, time_out_now
from stepwell.playground.report_server import LONGEST_LINE
from stepwell.web.diagrams import describe_flow

__all__ = ["handled_update", "install"]

logger: logging.Logger = logging.getLogger(__name__)

#: The id of the update that this task, or the task that started it, handles.
handled_update: ContextVar[int | None] = ContextVar("stepwell_playground_update", default=None)
_REPORTED = (
    MachineReady, UpdateReceived, DuplicateReceived, Committed, HandlerFailed, TimerFired, ConversationExpired
)  # fmt: skip
#: The most characters of a traceback; its end is kept.
MAX_TRACEBACK = 8000
_EDITS = {"edit": edit_record, "clear": clear_record, "restore": restore_record}
_OWN_CODE = str(Path(__file__).parents[1])


class _Observed(NamedTuple):
    """An event, and the update that caused it."""

    event: FSMEvent
    update_id: int | None


def install(address: str) -> None:
    """Report every machine of this process to ``host:port:secret`` from now on."""
    host, port, secret = address.split(":")
    reporters: dict[asyncio.AbstractEventLoop, Reporter] = {}

    def report(event: FSMEvent) -> None:
        if isinstance(event, _REPORTED):
            if isinstance(event, UpdateReceived):
                handled_update.set(event.update.update_id)
            loop = asyncio.get_running_loop()
            if loop not in reporters:
                reporters[loop] = Reporter(host, int(port), secret)
            reporters[loop].observe(event, handled_update.get())

    subscribe(report)


class Reporter:
    """One connection to the playground, with one JSON object per line."""

    def __init__(self, host: str, port: int, secret: str) -> None:
        self._events: asyncio.Queue[_Observed] = asyncio.Queue()
        self._machines: dict[str, FSM] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._reporting = asyncio.create_task(self._report(host, port, secret), name="stepwell-playground")

    def observe(self, event: FSMEvent, update_id: int | None) -> None:
        """Report an event."""
        if isinstance(event, MachineReady) and isinstance(event.fsm, FSM):
            # Known before the connection, because requests may arrive at once.
            self._machines[event.bot] = event.fsm
        self._events.put_nowait(_Observed(event, update_id))

    async def _report(self, host: str, port: int, secret: str) -> None:
        reader, self._writer = await asyncio.open_connection(host, port, limit=LONGEST_LINE)
        self._send({"secret": secret})
        self._reading = asyncio.create_task(self._read(reader), name="stepwell-playground-requests")
        while True:
            event, update_id = await self._events.get()
            fsm = event.fsm
            assert isinstance(fsm, FSM)
            if isinstance(event, MachineReady):
                flows = [describe_flow(flow) for flow in fsm.flows.values()]
                self._send({"kind": "machine", "bot": fsm.bot, "flows": flows, "storage": type(fsm.storage).__name__})
                continue
            report = _about(fsm, event, update_id)
            if isinstance(event, Committed):
                assert event.address is not None
                try:
                    # Read again: the page shows what is stored.
                    report |= (await read_record(fsm.storage, event.address))._asdict()
                except StepwellError as error:
                    logger.warning("the record at %s could not be read: %s", event.address.text, error)
                    continue
            self._send(report)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            request = json.loads(line)
            try:
                answer: Any = await self._answer(request)
            except (StepwellError, ValueError) as error:
                answer = {"error": str(error)}
            self._send({"kind": "answer", "id": request["id"], "answer": answer})

    async def _answer(self, request: dict[str, Any]) -> Any:
        if request["do"] == "place":
            return {"records": [await _placed(fsm, request["update"]) for fsm in self._machines.values()]}
        fsm = self._machines.get(request["bot"])
        if fsm is None:
            # A program may have several loops, each with machines of its own.
            return None
        if request["do"] == "time out":
            return {"fired": await time_out_now(fsm, decode_key(request["key"]))}
        address = fsm.storage.address(fsm.bot, decode_key(request["key"]))
        await _EDITS[request["do"]](fsm.storage, address, request)
        return (await read_record(fsm.storage, address))._asdict()

    def _send(self, line: dict[str, Any]) -> None:
        assert self._writer is not None
        if not self._writer.is_closing():
            self._writer.write(json.dumps(line).encode() + b"\n")


def _about(fsm: FSM, event: FSMEvent, update_id: int | None) -> dict[str, Any]:
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
    report["traceback"] = None if error is None else _traceback(error)
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


def _traceback(error: BaseException) -> str:
    """Return a traceback that begins with the bot's own code."""
    begin: TracebackType | None = error.__traceback__
    while begin is not None and begin.tb_frame.f_code.co_filename.startswith(_OWN_CODE):
        begin = begin.tb_next
    text = "".join(traceback.format_exception(type(error), error, begin or error.__traceback__))
    return text if len(text) <= MAX_TRACEBACK else f"…{text[-MAX_TRACEBACK:]}"


async def _placed(fsm: FSM, update: dict[str, Any]) -> dict[str, Any]:
    key = fsm.key.extract(Update.of(update))
    if key is None:
        return {"bot": fsm.bot, "key": None, "record": None, "snapshot": {}}
    address = fsm.storage.address(fsm.bot, key)
    return {"bot": fsm.bot, "key": address.key, **(await read_record(fsm.storage, address))._asdict()}
