"""Schedules in the storage: one record for each, which the worker that claims it at a tick moves to the next tick.

The flow of the record is the flow to run, its deadline the next tick. A worker reads due schedules of its own flows
only. The id of a run names its tick, and the run is kept for a day at least, so a tick that is submitted again after a
crash does not run again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from stepwell._secrets import quoted
from stepwell.codec import decode_key
from stepwell.codec.values import conform
from stepwell.errors import Busy, CorruptRecord, InvalidOption, StepwellError, StorageError
from stepwell.nodes.queue.submitting import KEPT, submit
from stepwell.nodes.schedules.ticks import GRACE, Missed, Timing, tick_id
from stepwell.record import SCHEDULES, Address, Place
from stepwell.slot import Slot
from stepwell.storage.poller import Pauses, poll

if TYPE_CHECKING:
    from stepwell.nodes.graph.base_flow import BaseFlow
    from stepwell.storage import Storage

__all__ = ["ScheduleStatus", "Ticker", "change", "declare", "describe", "hold", "status_of"]

logger: logging.Logger = logging.getLogger(__name__)

#: Seconds between two polls for due schedules.
EVERY = 0.5
#: The most schedules of one poll, and the most runs that one poll submits for a schedule.
PAGE, MOST_RUNS = 100, 1000
#: The first and the longest pause, in seconds, before a schedule that failed is tried again.
PAUSES = (1.0, 300.0)
#: The lease of a schedule in seconds. If a worker dies while it submits a tick, the tick is late by this time.
LEASE = 3.0
#: Seconds to wait for a worker that holds a schedule; longer than the lease of one that has died.
WAIT = 10.0


class _Fields(TypedDict):
    """The form of the record of a schedule."""

    flow: str
    every: float | None
    cron: str | None
    tz: str
    missed: Missed
    shared: dict[str, Any]
    paused: bool
    next: float
    #: The times and the rest as the code of the workers has them, to notice when it changes.
    declared: list[Any]
    last: NotRequired[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleStatus:
    """A schedule in the storage. Times are in UTC.

    Example::

        await Schedules(storage).add(every(3600, quotes, name="hourly"))
        status: ScheduleStatus = await Schedules(storage).get("hourly")
        assert status.flow == "words" and status.every == 3600
    """

    name: str
    #: The name of the flow.
    flow: str
    every: float | None
    cron: str | None
    tz: str
    missed: Missed
    shared: Mapping[str, Any]
    paused: bool
    #: The next tick; ``None`` while it is paused.
    next: datetime | None
    #: The last tick that was submitted.
    last: datetime | None
    #: The id of the run of the last tick.
    last_id: str | None


def describe(timing: Timing) -> str:
    """Return the times of a schedule for people."""
    return f"every {timing.every:g} s" if timing.cron is None else f"{timing.cron!r} in {timing.tz}"


def status_of(name: str, data: Mapping[Any, Any]) -> ScheduleStatus:
    """Return a schedule as users see it; raise ``CorruptRecord`` if its record has another form."""
    _check(name, data)
    last = data.get("last")
    return ScheduleStatus(
        name=name,
        flow=data["flow"],
        every=data["every"],
        cron=data["cron"],
        tz=data["tz"],
        missed=data["missed"],
        shared=data["shared"],
        paused=data["paused"],
        next=None if data["paused"] else datetime.fromtimestamp(data["next"], UTC),
        last=None if last is None else datetime.fromtimestamp(last, UTC),
        last_id=None if last is None else tick_id(name, last),
    )


def hold(storage: Storage, name: str, *, wait: float = WAIT) -> Slot:
    """Return the slot of a schedule, which one process changes at a time."""
    return Slot(storage, SCHEDULES, name, wait=wait, lease=LEASE)


async def declare(
    storage: Storage,
    name: str,
    timing: Timing,
    *,
    flow: str,
    missed: Missed,
    shared: dict[str, Any],
    replace: bool = False,
) -> None:
    """Write a schedule, unless the storage has it from the same code. A changed or paused one then stays so."""
    declared = [*timing, missed, shared, flow]
    stored = None if replace else await storage.get_data(SCHEDULES, name)
    if _is_declared(stored, declared):
        # Usual, and it does not wait for a worker that submits a tick.
        return
    async with hold(storage, name) as slot:
        known = slot.data if slot.found and conform(slot.data, _Fields)[1] is None else None
        if _is_declared(known, declared) and not replace:
            return
        data = {
            "flow": flow,
            "every": timing.every,
            "cron": timing.cron,
            "tz": timing.tz,
            "missed": missed,
            "shared": shared,
            "paused": False if known is None or replace else known["paused"],
            "next": timing.after(slot.now),
            "declared": declared,
        }
        if known is not None and "last" in known:
            data["last"] = known["last"]
        slot.data = data
        await _write(slot)


def _is_declared(data: Mapping[Any, Any] | None, declared: list[Any]) -> bool:
    return data is not None and conform(dict(data), _Fields)[1] is None and data["declared"] == declared


async def change(slot: Slot, changes: Mapping[str, Any]) -> None:
    """Change fields of a held schedule, and find its next tick again if that depends on them."""
    data = slot.data
    name = decode_key(slot.address.key)
    _check(name, data)
    timing = before = _timing(data)
    if "every" in changes:
        timing = Timing(changes["every"], None)
    elif "cron" in changes or "tz" in changes:
        timing = Timing(None, changes.get("cron", before.cron), changes.get("tz", before.tz))
        if timing.cron is None:
            raise InvalidOption(f"the schedule {quoted(name)} has no cron expression; give cron=... with tz=...")
    resumed = data["paused"] and changes.get("paused") is False
    retimed = timing != before
    if retimed:
        timing.check()
    slot.data = {
        **data,
        **changes,
        **timing._asdict(),
        "next": timing.after(slot.now) if retimed or resumed else data["next"],
    }
    await _write(slot)


async def _write(slot: Slot) -> None:
    data = slot.data
    slot.place = Place(data["flow"], "paused" if data["paused"] else "active")
    await slot.commit(timers={} if data["paused"] else {"next": data["next"]}, force=True)


def _timing(data: Mapping[Any, Any]) -> Timing:
    return Timing(data["every"], data["cron"], data["tz"])


def _check(name: Any, data: Mapping[Any, Any]) -> None:
    problem = conform(dict(data), _Fields)[1]
    if problem is not None:
        raise CorruptRecord(f"{SCHEDULES}/{name}", "the schedule", f"has another form ({problem})")


class Ticker:
    """Submits the runs of due schedules, for one worker."""

    def __init__(self, storage: Storage, flows: Mapping[str, BaseFlow]) -> None:
        self._storage = storage
        self._flows = flows
        self._pauses = Pauses(*PAUSES)
        self._polling: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start polling."""
        polling = poll(self._look, self._rest, "schedules")
        self._polling = asyncio.get_running_loop().create_task(polling, name="stepwell-schedules")

    async def stop(self) -> None:
        """Stop polling. A tick that is being submitted stays due."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait([self._polling])

    async def _rest(self, pause: float) -> None:
        await asyncio.sleep(max(pause, EVERY) * self._storage.rng.uniform(0.8, 1.2))

    async def _look(self) -> None:
        for flow in self._flows.values():
            for due in await self._storage.due(SCHEDULES, limit=PAGE, flow=flow._title()):
                if due.address not in self._pauses:
                    await self._tick(flow, due.address)

    async def _tick(self, flow: BaseFlow, address: Address) -> None:
        try:
            # Another worker that holds it submits this tick.
            async with hold(self._storage, decode_key(address.key), wait=0.0) as slot:
                if slot.found and slot.deadline is not None and slot.deadline <= slot.now:
                    await self._submit(flow, decode_key(address.key), slot)
        except Busy:
            return
        except StorageError:
            raise
        except StepwellError as error:
            logger.warning("the schedule %s could not be run: %s", address.key, error)
            self._pauses.add(address)
        else:
            self._pauses.remove(address)

    async def _submit(self, flow: BaseFlow, name: str, slot: Slot) -> None:
        """Submit the ticks that are due, then write the next one. A crash between the two repeats the same ids."""
        data, now = slot.data, slot.now
        _check(name, data)
        timing = _timing(data)
        ticks = _due(timing, data["missed"], data["next"], now)
        for tick in ticks:
            await submit(
                flow,
                data["shared"],
                storage=self._storage,
                flow_id=tick_id(name, tick),
                partition=None,
                after=None,
                priority=0,
                params={"tick": datetime.fromtimestamp(tick, UTC)},
                keep=flow.keep if flow.keep is True else max(float(flow.keep), KEPT),
            )
        more = len(ticks) == MOST_RUNS
        last = {"last": ticks[-1]} if ticks else {}
        slot.data = {**data, **last, "next": timing.after(ticks[-1] if more else now)}
        await _write(slot)


def _due(timing: Timing, missed: Missed, first: float, now: float) -> list[float]:
    """Return the ticks to submit now, oldest first, as the policy for missed ones says."""
    if missed == "all":
        return list(islice(timing.between(first, now), MOST_RUNS))
    last = max(first, timing.last(now))
    return [] if missed == "skip" and now - last > GRACE else [last]
