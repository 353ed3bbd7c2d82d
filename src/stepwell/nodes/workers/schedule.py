"""Schedules: runs that workers submit at fixed times."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, get_args

from stepwell.codec import check_name
from stepwell.errors import InvalidOption, UnknownSchedule
from stepwell.nodes.graph.base import BaseFlow
from stepwell.nodes.workers import stored
from stepwell.nodes.workers.stored import ScheduleStatus
from stepwell.nodes.workers.ticks import Missed, Timing
from stepwell.options import check_choice, check_instance, check_text
from stepwell.record import SCHEDULES
from stepwell.storage.state_storage import default_storage
from stepwell.storage.urls import as_storage

if TYPE_CHECKING:
    from stepwell.nodes.flow import NodeFlow
    from stepwell.storage import Storage

__all__ = ["Schedule", "Schedules", "cron", "every"]


class Schedule:
    """A flow and the times at which it runs; made by :func:`every` and :func:`cron`.

    Example::

        schedule: Schedule = every(3600, quotes, name="hourly")
        await Schedules(storage).add(schedule)
    """

    def __init__(
        self, flow: NodeFlow, timing: Timing, *, name: str | None, missed: Missed, shared: Mapping[str, Any] | None
    ) -> None:
        timing.check()
        _check_missed(missed)
        check_instance(flow, BaseFlow, "every() and cron() run flows, not {}: give a NodeFlow")
        self.flow: NodeFlow = flow
        self.timing: Timing = timing
        self.name: str = flow._title() if name is None else name
        self.missed: Missed = missed
        self.shared: dict[str, Any] = {} if shared is None else _checked_shared(shared)
        check_text(self.name, "name={}: give a schedule a non-empty name")
        check_name("the schedule", self.name)

    async def declare(self, storage: Storage, *, replace: bool = False) -> None:
        """Write it to a storage, unless the storage has it from the same code; with ``replace`` in any case."""
        await stored.declare(
            storage,
            self.name,
            self.timing,
            flow=self.flow._title(),
            missed=self.missed,
            shared=self.shared,
            replace=replace,
        )

    def __repr__(self) -> str:
        return f"Schedule({self.name!r}, {stored.describe(self.timing)})"


def every(
    seconds: float,
    flow: NodeFlow,
    *,
    name: str | None = None,
    missed: Missed = "once",
    shared: Mapping[str, Any] | None = None,
) -> Schedule:
    """Run a flow every ``seconds``: at the multiples of it since 1970, so ``every(3600, ...)`` runs on the hour in UTC.

    Example::

        schedules = [every(3600, flow)]

    :param name: the name of the schedule; by default that of the flow.
    :param missed: what to do with ticks that passed while no worker ran: ``"skip"`` them, run the last one
        (``"once"``), or run them ``"all"``. A tick that is less than a minute late is not missed.
    :param shared: the shared state of each run.
    """
    return Schedule(flow, Timing(seconds, None), name=name, missed=missed, shared=shared)


def cron(
    expression: str,
    flow: NodeFlow,
    *,
    tz: str = "UTC",
    name: str | None = None,
    missed: Missed = "once",
    shared: Mapping[str, Any] | None = None,
) -> Schedule:
    """Run a flow at the times of a cron expression in a time zone: ``cron("0 9 * * 1-5", flow, tz="Europe/Berlin")``.

    Daylight saving time is handled as in Debian's cron: a job at an hour that is skipped runs right after it, and a
    job at an hour that comes twice runs once. It needs the extra ``cron``. The other parameters are those of
    :func:`every`.

    Example::

        schedules = [cron("0 9 * * 1-5", flow, tz="Europe/Berlin")]
    """
    return Schedule(flow, Timing(None, expression, tz), name=name, missed=missed, shared=shared)


class Schedules:
    """The schedules in a storage: list, add, change, pause and remove them while workers run.

    Workers notice a change within a second. ``Schedules("postgresql://...")``; by default the configured storage.

    Example::

        schedules = Schedules(storage)
        await schedules.add(every(3600, quotes, name="hourly"))
        await schedules.pause("hourly")
        assert [(status.name, status.paused) async for status in schedules.list()] == [("hourly", True)]
    """

    def __init__(self, storage: Storage | str | None = None) -> None:
        self.storage: Storage = default_storage() if storage is None else as_storage(storage)

    async def list(self) -> AsyncIterator[ScheduleStatus]:
        """Yield all schedules; use ``async for``."""
        async for entry in self.storage.scan(SCHEDULES):
            yield stored.status_of(entry.key, entry.state.data)

    async def get(self, name: str) -> ScheduleStatus:
        """Return one schedule; raise ``UnknownSchedule`` if there is none."""
        data = await self.storage.get_data(SCHEDULES, name)
        if data is None:
            raise UnknownSchedule(name)
        return stored.status_of(name, data)

    async def add(self, schedule: Schedule) -> None:
        """Add a schedule, or replace the one of the same name. Workers that have its flow run it."""
        check_instance(schedule, Schedule, "add() takes a schedule, not {}: give every(...) or cron(...)")
        await schedule.declare(self.storage, replace=True)

    async def pause(self, name: str) -> None:
        """Submit no runs until :meth:`resume`."""
        await self._change(name, paused=True)

    async def resume(self, name: str) -> None:
        """End a pause. The next tick is in the future: ticks during the pause are not missed ones."""
        await self._change(name, paused=False)

    async def change(
        self,
        name: str,
        *,
        every: float | None = None,
        cron: str | None = None,
        tz: str | None = None,
        missed: Missed | None = None,
        shared: Mapping[str, Any] | None = None,
    ) -> None:
        """Change the times, the policy for missed ticks, or the shared state of later runs; keep the rest.

        The change stays until the schedule in the code of the workers is changed, too.
        """
        if every is not None and (cron is not None or tz is not None):
            raise InvalidOption("change() takes every=..., or cron=... and tz=..., not both")
        given = {"every": every, "cron": cron, "tz": tz}
        changes: dict[str, Any] = {option: value for option, value in given.items() if value is not None}
        if missed is not None:
            _check_missed(missed)
            changes["missed"] = missed
        if shared is not None:
            changes["shared"] = _checked_shared(shared)
        if not changes:
            raise InvalidOption("change() needs an option to change: every=, cron=, tz=, missed= or shared=")
        await self._change(name, **changes)

    async def remove(self, name: str) -> None:
        """Remove a schedule. A worker that has it in its code adds it again when it starts; pause it instead.

        Raises ``UnknownSchedule`` if there is none of this name.
        """
        async with stored.hold(self.storage, name) as slot:
            if not slot.found:
                raise UnknownSchedule(name)
            slot.delete()
            await slot.commit()

    async def _change(self, name: str, **changes: Any) -> None:
        async with stored.hold(self.storage, name) as slot:
            if not slot.found:
                raise UnknownSchedule(name)
            await stored.change(slot, changes)


def _checked_shared(shared: Any) -> dict[str, Any]:
    check_instance(shared, Mapping, "shared={}: give a dict")
    return dict(shared)


def _check_missed(missed: object) -> None:
    check_choice(missed, get_args(Missed), "missed={}: choose 'skip', 'once' or 'all'")
