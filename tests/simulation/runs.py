"""Runs: a storm of runs with waits, children, partitions and a schedule, as the processes of test_storm.py brew it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
from collections.abc import Iterator
from functools import cache
from typing import Any

from stepwell.nodes import Schedules
from stepwell.nodes.run import journal, lease, table
from stepwell.record import RUNS
from stepwell.testing.simulated_store import NETWORK_FAULTS
from stepwell.testing.simulation import Simulation
from tests.reliability.storm_roles import flows_of, hurry_all, storm_answer, storm_control, storm_submit, storm_worker
from tests.reliability.test_storm import acted, check, plan_of, quiet, undisturbed
from tests.simulation.world import Life, World

__all__ = ["Storm"]

# The package has a function of the same name.
workers = importlib.import_module("stepwell.nodes.workers.worker")


@contextlib.contextmanager
def hurried() -> Iterator[None]:
    """Shorten the times after which a process takes over the work of another, as the processes of the storm do."""
    before = lease.LEASE, journal.WATCH, workers.REPAIR_EVERY, table.REPORT
    hurry_all()
    try:
        yield
    finally:
        lease.LEASE, journal.WATCH, workers.REPAIR_EVERY = before[:3]
        setattr(table, "REPORT", before[3])  # noqa: B010 it is final


@cache
def undisturbed_finals() -> dict[str, list[dict[str, Any]]]:
    """Return the final states of runs that nothing disturbs."""
    return Simulation(0, allow=("clock",)).run(undisturbed())


class Storm(World):
    """Two workers, and processes that submit, answer and control runs."""

    places = {
        **dict.fromkeys(("worker", "other"), ("kill", "kill", "pause", "stop", *NETWORK_FAULTS)),
        **dict.fromkeys(("submit", "answer", "control"), ("kill", "pause", *NETWORK_FAULTS)),
    }
    span = 5.0
    steps = 600
    requests = 60

    def __init__(self, seed: int, faults: Any = None) -> None:
        super().__init__(seed, faults)
        self.plan = plan_of(self.choose, 4, 2, 0)

    # What the checks of test_storm.py read

    @property
    def seen(self) -> list[Life]:
        return self.lives

    @property
    def stopped(self) -> set[str]:
        return {life.pid for life in self.lives}

    def run(self) -> None:
        with hurried(), contextlib.redirect_stdout(io.StringIO()):
            undisturbed_finals()
            super().run()

    async def live(self) -> None:
        self.keep("submit", self.submit)
        self.keep("answer", self.answer)
        self.keep("control", self.control)
        for slot in ("worker", "other"):
            self.keep(slot, self.work)
        await asyncio.sleep(self.span)
        self.calm()
        storage = self.store.storage(sweep_every=None)
        async with storage:
            flows = flows_of(storage, quiet)
            others = {name: flow for name, flow in flows.items() if name != "ticking"}

            async def drained(some: Any) -> bool:
                runs = [run for flow in some.values() for run in [run async for run in flow.runs()]]
                missing = len(self.unreported("submitted", self.plan.submissions))
                left = [each for each in self.plan.actions if (each[0], each[2]) not in acted(self)]
                due = await storage.due(RUNS, before=float(1 << 40)) if some is flows else ()
                return not (runs or missing or left or due)

            await self.until(lambda: drained(others), "all runs have ended", seconds=300)
            # A worker that was killed while it submitted a tick is followed by another one after its lease.
            await asyncio.sleep(5)
            await Schedules(storage).pause("clock")
            await self.until(lambda: drained(flows), "all ticks have run", seconds=100)
            await check(storage, self, undisturbed_finals())

    def unreported(self, word: str, wanted: Any) -> list[Any]:
        reported = {line[1] for line in self.reports(word)}
        return [each for each in wanted if each[1] not in reported]

    async def submit(self, life: Life) -> None:
        async with self.storage(sweep_every=None) as storage:
            missing = self.unreported("submitted", self.plan.submissions)
            await storm_submit(storage, life.report, submissions=missing, pause=0.5)

    async def answer(self, life: Life) -> None:
        async with self.storage(sweep_every=None) as storage:
            await storm_answer(storage, life.report, answered=[line[1] for line in self.reports("answered")])

    async def control(self, life: Life) -> None:
        done = {(line[1], line[2]) for line in self.reports("acted")}
        plan = [each for each in self.plan.actions if (each[0], each[2]) not in done]
        async with self.storage(sweep_every=None) as storage:
            await storm_control(storage, life.report, plan=plan)

    async def work(self, life: Life) -> None:
        async with self.storage(sweep_every=None) as storage:
            await storm_worker(storage, life.report, concurrency=4)
