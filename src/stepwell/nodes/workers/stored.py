"""Schedules in the storage: one record for each, which the worker that claims it at a tick moves to the next tick.

The flow of the record is the flow to run, its deadline the next tick. A worker reads due schedules of its own flows
only. The id of a run names its tick, and the run is kept for a day at least, so a tick that is submitted again after a
crash does not run again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from stepwell._secrets import quoted
from stepwell.codec import decode_key
from stepwell.codec.values import conform
from stepwell.dispatch import TaskLimit, TimerSource
from stepwell.errors import CorruptRecord, InvalidOption, LeaseLost
from stepwell.nodes.queue.submission import Submission
from stepwell.nodes.queue.submitting import KEPT, submit
from stepwell.nodes.workers.ticks import GRACE, Missed, Timing, tick_id
from stepwell.record import SCHEDULES, Place
from stepwell.slot import Slot

if TYPE_CHECKING:
    from stepwell.nodes.graph.base import BaseFlow
    from stepwell.storage import Storage

__all__ = ["ScheduleStatus", "ScheduleTimers", "change", "declare", "describe", "hold", "status_of"]

#: The timer of a schedule: its next tick.
NEXT = "next"
#: How many schedules are submitted at once, and the most runs that are submitted for a schedule under one claim.
AT_ONCE, MOST_RUNS = 8, 1000
#: The lease of a schedule in seconds. If a worker dies while it submits a tick, the tick is late by this time.
LEASE = 3.0
#: How often a schedule is declared whose lease ends meanwhile.
DECLARES = 3
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
    for attempt in range(1, DECLARES + 1):
        try:
            await _declare(storage, name, timing, declared, replace=replace)
        except LeaseLost:
            # The storage has answered more slowly than the lease, and a worker must not fail at its start for that.
            if attempt == DECLARES:
                raise
        else:
            return


async def _declare(storage: Storage, name: str, timing: Timing, declared: list[Any], *, replace: bool) -> None:
    *_, missed, shared, flow = declared
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
    await slot.commit(timers={} if data["paused"] else {NEXT: data["next"]}, force=True)


def _timing(data: Mapping[Any, Any]) -> Timing:
    return Timing(data["every"], data["cron"], data["tz"])


def _check(name: Any, data: Mapping[Any, Any]) -> None:
    problem = conform(dict(data), _Fields)[1]
    if problem is not None:
        raise CorruptRecord(f"{SCHEDULES}/{name}", "the schedule", f"has another form ({problem})")


class ScheduleTimers(TimerSource):
    """Submits the runs of due schedules, for one worker."""

    def __init__(self, storage: Storage, flows: Mapping[str, BaseFlow]) -> None:
        owners = {NEXT: self._submit}
        super().__init__(
            storage, SCHEDULES, owners, flows=list(flows), limits=[TaskLimit(AT_ONCE)], lease=LEASE, what="schedule"
        )
        self._runs_of = flows

    async def _submit(self, slot: Slot) -> None:
        """Submit the ticks that are due, then write the next one. A crash between the two repeats the same ids."""
        flow, name = self._runs_of[slot.flow or ""], decode_key(slot.address.key)
        data, now = slot.data, slot.now
        _check(name, data)
        timing = _timing(data)
        ticks = _due(timing, data["missed"], data["next"], now)
        for tick in ticks:
            how = Submission(
                params={"tick": datetime.fromtimestamp(tick, UTC)},
                keep=flow.keep if flow.keep is True else max(float(flow.keep), KEPT),
                # A crash repeats the tick, perhaps after a change of the schedule.
                on_exists="return",
            )
            await submit(flow, data["shared"], how, storage=self.storage, flow_id=tick_id(name, tick))
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
