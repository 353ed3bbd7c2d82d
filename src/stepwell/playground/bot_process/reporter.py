"""In the bot's process: reports its machines, and what they do with each update, to the playground.

Records that no machine writes, such as those of aiogram's own FSM, are reported too. ``install`` is called before the
bot's own code. A reporter runs on the event loop of its machine, because the storage does too.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from contextvars import ContextVar
from typing import Any, NamedTuple

from stepwell import Storage
from stepwell.engine import (
    TURNS,
    Address,
    Apply,
    Claim,
    Claimed,
    Operation,
    Release,
    ReservedNamespace,
    Result,
    Stored,
    decode_key,
    decode_namespace,
)
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
    subscribe,
)
from stepwell.playground.bot_process.events import report_of
from stepwell.playground.bot_process.record_watch import RecordWatch, watch_storages
from stepwell.playground.bot_process.records import (
    clear_record,
    edit_record,
    read_record,
    restore_record,
    shown_record,
    time_out_now,
)
from stepwell.playground.bot_process.turns import read_turns
from stepwell.playground.report_server import LONGEST_LINE
from stepwell.web.diagrams import describe_flow

__all__ = ["handled_update", "install"]

logger: logging.Logger = logging.getLogger(__name__)

#: The id of the update that this task, or the task that started it, handles.
handled_update: ContextVar[int | None] = ContextVar("stepwell_playground_update", default=None)
_REPORTED = (
    MachineReady, UpdateReceived, DuplicateReceived, Committed, HandlerFailed, TimerFired, ConversationExpired
)  # fmt: skip
_EDITS = {"edit": edit_record, "clear": clear_record, "restore": restore_record}


class _Observed(NamedTuple):
    """An event, the update that caused it, and the record before its write."""

    event: FSMEvent
    update_id: int | None
    before: dict[str, Any] | None


class _Used(NamedTuple):
    """A record that was read or written without a machine, and the update that caused it."""

    storage: Storage
    address: Address
    #: The record that was read; ``None`` also for a write.
    stored: Stored | None
    written: bool
    before: dict[str, Any] | None
    at: float
    update_id: int | None


class _Turned(NamedTuple):
    """A conversation with turns whose record was written."""

    storage: Storage
    address: Address


def install(address: str) -> None:
    """Report every machine and every record of this process to ``host:port:secret`` from now on."""
    host, port, secret = address.split(":")
    reporters: dict[asyncio.AbstractEventLoop, Reporter] = {}

    def reporter() -> Reporter:
        loop = asyncio.get_running_loop()
        if loop not in reporters:
            reporters[loop] = Reporter(host, int(port), secret)
        return reporters[loop]

    def report(event: FSMEvent) -> None:
        if isinstance(event, _REPORTED):
            if isinstance(event, UpdateReceived):
                handled_update.set(event.update.update_id)
            reporter().observe(event, handled_update.get())

    subscribe(report)
    watch_storages(lambda storage, operation, result: reporter().use(storage, operation, result))


class Reporter:
    """One connection to the playground, with one JSON object per line."""

    def __init__(self, host: str, port: int, secret: str) -> None:
        self._events: asyncio.Queue[_Observed | _Used | _Turned] = asyncio.Queue()
        #: The conversations with turns whose status is still to be read.
        self._turned: set[Address] = set()
        self._machines: dict[str, FSM] = {}
        #: The storages of records without a machine, by namespace.
        self._storages: dict[str, Storage] = {}
        self._seen: set[Address] = set()
        self._watch = RecordWatch()
        self._writer: asyncio.StreamWriter | None = None
        #: Held while a record is read and sent, so that an older version is never sent after a newer one.
        self._sending = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        self._reporting = asyncio.create_task(self._report(host, port, secret), name="stepwell-playground")

    def observe(self, event: FSMEvent, update_id: int | None) -> None:
        """Report an event."""
        if isinstance(event, MachineReady) and isinstance(event.fsm, FSM):
            # Known before the connection, because requests may arrive at once.
            self._machines[event.bot] = event.fsm
        before = self._watch.before(event.address) if isinstance(event, Committed) and event.address else None
        self._events.put_nowait(_Observed(event, update_id, before))

    def use(self, storage: Storage, operation: Operation, result: Result) -> None:
        """Note an operation. Report a record that no machine has when it is first used, claimed or written."""
        if asyncio.current_task() in (self._reporting, self._reading):
            return
        self._watch.performed(operation, result)
        address, written = operation.address, isinstance(operation, Apply)
        namespace = decode_namespace(address.namespace)
        if namespace == TURNS:
            self._storages[namespace] = storage
            if written and address not in self._turned:
                self._turned.add(address)
                self._events.put_nowait(_Turned(storage, address))
            return
        if (
            namespace in self._machines
            or isinstance(namespace, ReservedNamespace)
            or isinstance(operation, Release)
            or (address in self._seen and not written and not isinstance(operation, Claim))
        ):
            return
        if isinstance(operation, Claim) and (operation.renew or not isinstance(result, Claimed)):
            return
        self._storages[namespace] = storage
        self._seen.add(address)
        stored = result.record if isinstance(result, Claimed) else result if isinstance(result, Stored) else None
        before = self._watch.before(address) if written else None
        self._events.put_nowait(_Used(storage, address, stored, written, before, time.time(), handled_update.get()))

    async def _report(self, host: str, port: int, secret: str) -> None:
        reader, self._writer = await asyncio.open_connection(host, port, limit=LONGEST_LINE)
        self._send({"secret": secret})
        self._reading = asyncio.create_task(self._read(reader), name="stepwell-playground-requests")
        try:
            while True:
                observed = await self._events.get()
                if isinstance(observed, _Turned):
                    # A write after this is one more event.
                    self._turned.discard(observed.address)
                try:
                    async with self._sending:
                        self._send(await _report_of(observed))
                except Exception as error:  # noqa: BLE001 - later events must be shown
                    logger.warning("an event could not be shown in the playground: %r", error)
        finally:
            self._writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            request = json.loads(line)
            try:
                await self._answer(request)
            except (StepwellError, ValueError) as error:
                self._send_answer(request, {"error": str(error)})
            except Exception as error:  # noqa: BLE001 - later requests must be answered
                self._send_answer(request, {"error": repr(error)})

    async def _answer(self, request: dict[str, Any]) -> None:
        if request["do"] == "place":
            async with self._sending:
                records = [await _placed(fsm, request["update"]) for fsm in self._machines.values()]
                self._send_answer(request, {"records": records})
            return
        if request["do"] == "forget turns":
            known = self._storages.get(TURNS)
            if known is not None:
                # Without a claim, because the claim of a running turn is held until it ends.
                await known.forget(known.address(TURNS, decode_key(request["key"])))
            self._send_answer(request, None if known is None else {})
            return
        bot, key = request["bot"], decode_key(request["key"])
        fsm = self._machines.get(bot)
        if request["do"] == "time out":
            self._send_answer(request, None if fsm is None else {"fired": await time_out_now(fsm, key)})
            return
        storage = self._storages.get(bot) if fsm is None else fsm.storage
        if storage is None:
            # A program may have several loops, each with machines and storages of its own.
            self._send_answer(request, None)
            return
        address = storage.address(bot, key)
        if request["do"] != "read":
            await _EDITS[request["do"]](storage, address, request)
        async with self._sending:
            self._send_answer(request, (await read_record(storage, address))._asdict())

    def _send_answer(self, request: dict[str, Any], answer: dict[str, Any] | None) -> None:
        self._send({"kind": "answer", "id": request["id"], "answer": answer})

    def _send(self, line: dict[str, Any]) -> None:
        assert self._writer is not None
        if not self._writer.is_closing():
            self._writer.write(json.dumps(line).encode() + b"\n")


async def _report_of(observed: _Observed | _Used | _Turned) -> dict[str, Any]:
    if isinstance(observed, _Turned):
        bot, conversation = decode_key(observed.address.key)
        status = await read_turns(observed.storage, observed.address)
        return {"kind": "turn", "bot": bot, "key": observed.address.key, "ids": _ids(conversation), "status": status}
    if isinstance(observed, _Used):
        storage, address, stored, written, before, at, update_id = observed
        about = {"bot": decode_namespace(address.namespace), "key": address.key, "ids": _ids(decode_key(address.key))}
        record = await read_record(storage, address) if written else shown_record(storage, address, stored)
        what = {"kind": "used", "written": written, "before": before, "at": at, "update_id": update_id}
        return {**what, **about, **record._asdict()}
    event, fsm = observed.event, observed.event.fsm
    assert isinstance(fsm, FSM)
    if isinstance(event, MachineReady):
        flows = [describe_flow(flow) for flow in fsm.flows.values()]
        return {"kind": "machine", "bot": fsm.bot, "flows": flows, "storage": type(fsm.storage).__name__}
    report = report_of(fsm, event, observed.update_id)
    if isinstance(event, Committed):
        assert event.address is not None
        # Read again: the page shows what is stored.
        report |= {"before": observed.before, **(await read_record(fsm.storage, event.address))._asdict()}
    return report


def _ids(key: Any) -> list[int]:
    """Return the numbers in a key, among which are its user, chat and topic."""
    if isinstance(key, tuple):
        return [each for part in key for each in _ids(part)]
    return [key] if type(key) is int and abs(key) < 2**53 else []


async def _placed(fsm: FSM, update: dict[str, Any]) -> dict[str, Any]:
    try:
        key = fsm.key.extract(Update.of(update))
    except Exception as error:  # noqa: BLE001 - a function of the bot, which may expect other updates
        logger.warning("the key of a chat could not be found for the playground: %r", error)
        key = None
    if key is None:
        return {"bot": fsm.bot, "key": None, "record": None, "snapshot": {}}
    address = fsm.storage.address(fsm.bot, key)
    return {"bot": fsm.bot, "key": address.key, **(await read_record(fsm.storage, address))._asdict()}
