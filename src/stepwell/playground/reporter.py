"""In the bot's process: reports its machines, and each record that they write, to the playground.

``install`` is called before the bot's own code. A reporter runs on the event loop of its machine, because the
storage does too.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

from stepwell.codec import decode_key
from stepwell.errors import CorruptRecord, StepwellError
from stepwell.fsm import FSM, Committed, FSMEvent, MachineReady, Update, subscribe
from stepwell.playground.report_server import LONGEST_LINE
from stepwell.record import Address, Stored
from stepwell.slot import Slot
from stepwell.storage import Entry
from stepwell.storage.operations import Get
from stepwell.web.diagrams import describe_flow
from stepwell.web.display import as_json

__all__ = ["install", "record_of"]

logger: logging.Logger = logging.getLogger(__name__)


def install(address: str) -> None:
    """Report every machine of this process to ``host:port:secret`` from now on."""
    host, port, secret = address.split(":")
    reporters: dict[asyncio.AbstractEventLoop, Reporter] = {}

    def report(event: FSMEvent) -> None:
        if isinstance(event, MachineReady | Committed):
            loop = asyncio.get_running_loop()
            if loop not in reporters:
                reporters[loop] = Reporter(host, int(port), secret)
            reporters[loop].events.put_nowait(event)

    subscribe(report)


class Reporter:
    """One connection to the playground, with one JSON object per line."""

    def __init__(self, host: str, port: int, secret: str) -> None:
        self.events: asyncio.Queue[MachineReady | Committed] = asyncio.Queue()
        self._machines: dict[str, FSM] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._reporting = asyncio.create_task(self._report(host, port, secret), name="stepwell-playground")

    async def _report(self, host: str, port: int, secret: str) -> None:
        reader, self._writer = await asyncio.open_connection(host, port, limit=LONGEST_LINE)
        self._send({"secret": secret})
        self._reading = asyncio.create_task(self._read(reader), name="stepwell-playground-requests")
        while True:
            event = await self.events.get()
            fsm, address = event.fsm, event.address
            assert isinstance(fsm, FSM)
            if address is None:
                self._machines[fsm.bot] = fsm
                flows = [describe_flow(flow) for flow in fsm.flows.values()]
                self._send({"kind": "machine", "bot": fsm.bot, "flows": flows, "storage": type(fsm.storage).__name__})
                continue
            try:
                # Read again: the page shows what is stored.
                record = await record_of(fsm, address)
            except StepwellError as error:
                logger.warning("the record at %s could not be read for the playground: %s", address.text, error)
            else:
                self._send({"kind": "record", "bot": fsm.bot, "key": address.key, "record": record})

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
        fsm = self._machines[request["bot"]]
        return {"fired": await time_out_now(fsm, decode_key(request["key"]))}

    def _send(self, line: dict[str, Any]) -> None:
        assert self._writer is not None
        if not self._writer.is_closing():
            self._writer.write(json.dumps(line).encode() + b"\n")


async def time_out_now(fsm: FSM, key: Any) -> int:
    """Set the deadline of a record to now, fire all due timers, and return their number."""
    async with Slot(fsm.storage, fsm.bot, key, wait=fsm.wait, lease=fsm.lease) as slot:
        if not slot.found or slot.deadline is None:
            return 0
        if slot.place.times:
            slot.place = slot.place._replace(times=(slot.place.times[0], slot.now))
        await slot.commit(deadline=0.0, force=True)
    return await fsm.tick()


async def record_of(fsm: FSM, address: Address) -> dict[str, Any] | None:
    """Return a record as the page shows it; ``None`` if there is none."""
    stored: Stored | None = await fsm.storage.perform(Get(address))
    if stored is None:
        return None
    entry = Entry(address, stored, fsm.storage.seal(address))
    about = {"version": entry.version.number, "deadline": entry.deadline, "expires_at": entry.expires_at}
    try:
        place, data = entry.place, entry.state.data
    except CorruptRecord as error:
        return {**about, "flow": None, "state": None, "history": [], "waiting": [], "data": {}, "error": str(error)}
    if place.times:
        # The times of the conversation; the storage gets the earlier of the two as its deadline.
        about |= {"expires_at": place.times[0], "deadline": place.times[1]}
    return {
        **about,
        "flow": place.flow,
        "state": place.state,
        "history": list(place.history),
        "waiting": len(place.stack),
        "data": as_json(data),
    }


async def _placed(fsm: FSM, update: dict[str, Any]) -> dict[str, Any]:
    key = fsm.key.extract(Update.of(update))
    if key is None:
        return {"bot": fsm.bot, "key": None, "record": None}
    address = fsm.storage.address(fsm.bot, key)
    return {"bot": fsm.bot, "key": address.key, "record": await record_of(fsm, address)}
