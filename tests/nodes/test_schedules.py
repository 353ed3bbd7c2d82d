"""Schedules: each tick runs once among all workers, missed ones by their policy, and daylight saving is right."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from stepwell import MemoryStorage, Storage
from stepwell.errors import CorruptRecord, EncodeError, InvalidOption, UnknownSchedule
from stepwell.nodes import Node, NodeFlow, Schedules, cron, every, linear, worker
from stepwell.nodes.workers.ticks import Missed, Timing, tick_id
from stepwell.record import SCHEDULES
from stepwell.storage.operations import Claim
from stepwell.testing import Clock
from stepwell.testing.simulated_store import SimulatedStore
from stepwell.testing.simulation import Simulation
from tests.backends import Backend
from tests.constants import Constants
from tests.until import until

BERLIN = ZoneInfo("Europe/Berlin")
#: A full hour.
START = datetime(2026, 11, 16, 8, tzinfo=UTC).timestamp()


class Note(Node):
    """Records the ticks of its runs."""

    def __init__(self) -> None:
        super().__init__(name="note")
        self.ticks: list[datetime] = []
        self.shared: list[dict[str, Any]] = []

    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
        self.ticks.append(self.params["tick"])
        self.shared.append(dict(shared))


def flow_of(note: Note, name: str = "nightly") -> NodeFlow:
    return linear(note, name=name)


@pytest.fixture(autouse=True)
def quick(constants: Constants) -> None:
    constants(tick=0.01)


@pytest.fixture
def clock() -> Clock:
    return Clock(START + 0.5)


@pytest.fixture
async def storage(clock: Clock) -> AsyncIterator[Storage]:
    storage = MemoryStorage(clock=clock)
    await storage.open()
    yield storage
    await storage.close()


@asynccontextmanager
async def ticking(storage: Storage, *flows: NodeFlow, schedules: Any = ()) -> AsyncIterator[None]:
    async with worker(list(flows), storage=storage, schedules=schedules):
        yield


async def settled(note: Note, count: int) -> list[datetime]:
    """Wait until so many runs have ended, and a little longer for one too many."""
    await until(lambda: len(note.ticks) >= count)
    await asyncio.sleep(0.1)
    return note.ticks


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(START + seconds, UTC)


async def test_each_tick_runs_once_among_all_workers(storage: Storage, clock: Clock) -> None:
    note = Note()
    flow = flow_of(note)
    schedule = every(60, flow, shared={"kind": "report"})
    async with ticking(storage, flow, schedules=[schedule]), ticking(storage, flow, schedules=[schedule]):
        await asyncio.sleep(0.1)
        assert note.ticks == []
        for number in (1, 2, 3):
            clock.advance(60)
            assert await settled(note, number) == [at(60 * each) for each in range(1, number + 1)]
    assert note.shared == [{"kind": "report"}] * 3
    run = await flow.status("nightly@2026-11-16T08:01:00Z", storage=storage)
    assert run.status == "finished"


@pytest.mark.every_backend
async def test_each_tick_runs_once_on_every_backend(backend: Backend) -> None:
    note = Note()
    flow = flow_of(note)
    schedule = every(0.3, flow, missed="all")
    url = backend.place()
    first = backend.storage(url)
    second = backend.storage(url) if backend.shared else first
    async with ticking(first, flow, schedules=[schedule]), ticking(second, flow, schedules=[schedule]):
        ticks = await settled(note, 4)
    assert len(set(ticks)) == len(ticks)
    first_tick, last_tick = min(ticks).timestamp(), max(ticks).timestamp()
    submitted = {tick_id("nightly", tick) for tick in Timing(0.3, None).between(first_tick, last_tick)}
    assert {tick_id("nightly", tick.timestamp()) for tick in ticks} <= submitted
    for run_id in submitted:
        # Raises if there is none. A run that was just started when the workers stopped has not ended.
        await flow.status(run_id, storage=first)


async def test_a_tick_that_was_submitted_before_a_crash_does_not_run_again(storage: Storage, clock: Clock) -> None:
    note = Note()
    flow = flow_of(note)
    async with ticking(storage, flow, schedules=[every(60, flow)]):
        pass
    clock.advance(60)
    # A worker has submitted the tick, and was killed before it wrote the next one.
    await flow.submit(flow_id=tick_id("nightly", START + 60), params={"tick": at(60)}, storage=storage)
    async with ticking(storage, flow):
        assert await settled(note, 1) == [at(60)]
        clock.advance(60)
        assert await settled(note, 2) == [at(60), at(120)]


@pytest.mark.parametrize(
    ("missed", "late", "expected"),
    [
        ("once", 300.5, [300]),
        ("all", 300.5, [60, 120, 180, 240, 300]),
        ("skip", 300.5, [300]),
        ("skip", 3700, [3660]),
    ],
)
async def test_missed_ticks(storage: Storage, clock: Clock, missed: Missed, late: float, expected: list[int]) -> None:
    note = Note()
    flow = flow_of(note)
    async with ticking(storage, flow, schedules=[every(60, flow, missed=missed)]):
        pass
    clock.now = START + late
    async with ticking(storage, flow, schedules=[every(60, flow, missed=missed)]):
        assert sorted(await settled(note, len(expected))) == [at(each) for each in expected]
        status = await Schedules(storage).get("nightly")
        assert status.last == at(expected[-1])
        assert status.next is not None
        assert status.next.timestamp() > clock.now


async def test_a_late_tick_is_skipped_only_if_it_is_more_than_a_minute_late(storage: Storage, clock: Clock) -> None:
    note = Note()
    flow = flow_of(note)
    schedule = every(3600, flow, missed="skip")
    async with ticking(storage, flow, schedules=[schedule]):
        pass
    clock.now = START + 3 * 3600 + 61
    async with ticking(storage, flow):
        await until(lambda: Schedules(storage).get("nightly"), lambda it: it.next == at(4 * 3600))
    assert note.ticks == []
    clock.now = START + 4 * 3600 + 59
    async with ticking(storage, flow):
        assert await settled(note, 1) == [at(4 * 3600)]


async def test_more_missed_ticks_than_one_poll_submits(storage: Storage, clock: Clock, constants: Constants) -> None:
    constants(schedule_runs=7)
    note = Note()
    flow = flow_of(note)
    async with ticking(storage, flow, schedules=[every(1, flow, missed="all")]):
        pass
    clock.now = START + 30.5
    async with ticking(storage, flow):
        assert sorted(await settled(note, 30)) == [at(each) for each in range(1, 31)]


async def test_a_schedule_is_paused_changed_and_removed_while_workers_run(storage: Storage, clock: Clock) -> None:
    note = Note()
    flow = flow_of(note)
    known = Schedules(storage)
    async with ticking(storage, flow, schedules=[every(60, flow)]):
        await known.pause("nightly")
        status = await known.get("nightly")
        assert status.paused
        assert status.next is None
        clock.advance(600)
        await asyncio.sleep(0.1)
        assert note.ticks == []
        await known.resume("nightly")
        clock.advance(60)
        assert await settled(note, 1) == [at(660)]
        await known.change("nightly", every=10, shared={"changed": True})
        clock.advance(10)
        assert await settled(note, 2) == [at(660), at(670)]
        assert note.shared[-1] == {"changed": True}
    # The code has not changed, so the change stays.
    async with ticking(storage, flow, schedules=[every(60, flow)]):
        assert (await known.get("nightly")).every == 10
    # Now it has.
    async with ticking(storage, flow, schedules=[every(30, flow)]):
        assert (await known.get("nightly")).every == 30
        await known.remove("nightly")
        assert [each async for each in known.list()] == []
        with pytest.raises(UnknownSchedule, match="'nightly'"):
            await known.pause("nightly")


async def test_a_schedule_is_added_while_workers_run(storage: Storage, clock: Clock) -> None:
    note = Note()
    flow = flow_of(note)
    async with ticking(storage, flow):
        await Schedules(storage).add(every(5, flow, name="often"))
        assert [(each.name, each.flow) async for each in Schedules(storage).list()] == [("often", "nightly")]
        clock.advance(5)
        assert await settled(note, 1) == [at(5)]


async def test_schedules_of_other_flows_cost_a_worker_nothing(storage: Storage, clock: Clock) -> None:
    note = Note()
    mine, other = flow_of(note), flow_of(Note(), "other")
    for number in range(50):
        await Schedules(storage).add(every(5, other, name=f"other {number}"))
    async with ticking(storage, mine, schedules=[every(5, mine)]):
        clock.advance(5)
        assert await settled(note, 1) == [at(5)]
    assert {each.last async for each in Schedules(storage).list() if each.flow == "other"} == {None}


async def test_a_change_keeps_what_it_does_not_name(storage: Storage) -> None:
    known, flow = Schedules(storage), flow_of(Note())
    await known.add(cron("0 9 * * *", flow, tz="Europe/Berlin"))
    await known.change("nightly", cron="0 10 * * *")
    changed = await known.get("nightly")
    assert (changed.cron, changed.tz) == ("0 10 * * *", "Europe/Berlin")
    await known.change("nightly", tz="UTC")
    changed = await known.get("nightly")
    assert (changed.cron, changed.tz, changed.next) == ("0 10 * * *", "UTC", datetime(2026, 11, 16, 10, tzinfo=UTC))
    await known.change("nightly", every=60)
    for wrong in ({}, {"tz": "Europe/Berlin"}, {"every": 60, "tz": "UTC"}, {"every": 0}, {"cron": "never"}):
        with pytest.raises(InvalidOption):
            await known.change("nightly", **wrong)  # type: ignore[arg-type]
    assert (await known.get("nightly")).every == 60


async def test_a_worker_that_cannot_start_closes_the_storage_that_it_opened(tmp_path: Path) -> None:
    flow = flow_of(Note())
    starting = worker(
        [flow], storage=f"sqlite:///{tmp_path}/runs.db", schedules=[every(5, flow, shared={"x": object()})]
    )
    with pytest.raises(EncodeError):
        await starting.__aenter__()
    assert not starting._storage.is_open


async def test_a_damaged_schedule_stops_no_other(storage: Storage, clock: Clock) -> None:
    note = Note()
    flow = flow_of(note)
    async with ticking(storage, flow, schedules=[every(5, flow), every(5, flow, name="a damaged one")]):
        await storage.update_data(SCHEDULES, "a damaged one", {"every": "often"})
        clock.advance(5)
        assert await settled(note, 1) == [at(5)]
    with pytest.raises(CorruptRecord, match="has another form"):
        await Schedules(storage).get("a damaged one")


@pytest.mark.parametrize(
    ("expression", "start", "expected"),
    [
        # The hour from 2 to 3 is skipped on 29 March, and comes twice on 25 October.
        ("30 2 * * *", "2026-03-28T12:00", ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]),
        ("30 2 * * *", "2026-10-24T12:00", ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]),
        ("0 9 * * 1-5", "2026-03-27T09:00", ["2026-03-30T09:00+02:00", "2026-03-31T09:00+02:00"]),
        ("30 * * * *", "2026-10-25T01:40", ["2026-10-25T02:30+02:00", "2026-10-25T02:30+01:00"]),
    ],
)
def test_daylight_saving(expression: str, start: str, expected: list[str]) -> None:
    timing = Timing(None, expression, "Europe/Berlin")
    first = timing.after(datetime.fromisoformat(start).replace(tzinfo=BERLIN).timestamp())
    ticks = [first, timing.after(first)]
    assert ticks == [datetime.fromisoformat(each).timestamp() for each in expected]
    assert timing.last(ticks[1]) == ticks[1]
    assert timing.last(ticks[1] - 0.5) == ticks[0]
    assert list(timing.between(first, ticks[1])) == ticks


#: The days of both changes of the clock. Lord Howe moves it by half an hour.
CHANGES = {
    "Europe/Berlin": ("2026-03-29", "2026-10-25"),
    "America/New_York": ("2026-03-08", "2026-11-01"),
    "Australia/Lord_Howe": ("2026-04-05", "2026-10-04"),
}


def expected_ticks(
    hours: set[int], minutes: set[int], zone: ZoneInfo, begin: int, end: int, *, once: bool
) -> list[int]:
    """Walk over all minutes, and return those at which the clock of a zone shows such a time.

    ``once``: a time that the clock has shown before is left out, and skipped times tick right after the change.
    """
    ticks: list[int] = []
    shown = datetime.fromtimestamp(begin - 60, zone).replace(tzinfo=None, fold=0)
    for instant in range(begin, end, 60):
        local = datetime.fromtimestamp(instant, zone).replace(tzinfo=None, fold=0)
        times = [local]
        if once:
            passed = int((local - shown).total_seconds()) // 60
            times = [shown + timedelta(minutes=each) for each in range(1, passed + 1)]
            shown = max(shown, local)
        if any(time.hour in hours and time.minute in minutes for time in times):
            ticks.append(instant)
    return ticks


@pytest.mark.parametrize("tz", CHANGES)
@pytest.mark.parametrize(
    ("expression", "hours", "minutes", "once"),
    [
        ("30 2 * * *", {2}, {30}, True),
        ("0 2 * * *", {2}, {0}, True),
        ("45 1 * * *", {1}, {45}, True),
        ("5,35 2 * * *", {2}, {5, 35}, True),
        ("30 1-3 * * *", {1, 2, 3}, {30}, True),
        ("0,30 2,3 * * *", {2, 3}, {0, 30}, True),
        ("0 0 * * *", {0}, {0}, True),
        ("15 * * * *", set(range(24)), {15}, False),
        ("0 */2 * * *", set(range(0, 24, 2)), {0}, False),
        ("*/20 * * * *", set(range(24)), {0, 20, 40}, False),
        ("*/25 2 * * *", {2}, {0, 25, 50}, False),
    ],
)
def test_ticks_around_a_change_of_the_clock(
    tz: str, expression: str, hours: set[int], minutes: set[int], once: bool
) -> None:
    timing, zone = Timing(None, expression, tz), ZoneInfo(tz)
    for day in CHANGES[tz]:
        noon = int(datetime.fromisoformat(f"{day}T12:00").replace(tzinfo=zone).timestamp())
        ticks = expected_ticks(hours, minutes, zone, noon - 60 * 3600, noon + 60 * 3600, once=once)
        assert list(timing.between(ticks[0], ticks[-1])) == ticks
        for time in range(noon - 15 * 3600, noon + 3600, 300):
            for moment in (time - 0.5, time, time + 0.5):
                assert timing.after(moment) == next(tick for tick in ticks if tick > moment)
                assert timing.last(moment) == next(tick for tick in reversed(ticks) if tick <= moment)


async def test_a_schedule_that_is_added_in_the_repeated_hour_does_not_run_again(storage: Storage, clock: Clock) -> None:
    note = Note()
    flow = flow_of(note)
    # 2:10 for the second time. The only tick of the night was at 2:30 summer time.
    clock.now = datetime(2026, 10, 25, 1, 10, tzinfo=UTC).timestamp()
    async with ticking(storage, flow, schedules=[cron("30 2 * * *", flow, tz="Europe/Berlin")]):
        assert await settled(note, 0) == []
    assert (await Schedules(storage).get("nightly")).next == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


@pytest.mark.parametrize("seconds", [0.1, 0.7, 60, 3600])
def test_ticks_of_an_interval_are_multiples_of_it(seconds: float) -> None:
    timing = Timing(seconds, None)
    tick = timing.after(START)
    for _ in range(100):
        following = timing.after(tick)
        assert following > tick
        assert following - tick == pytest.approx(seconds, abs=1e-6)
        assert timing.after(timing.last(following)) > timing.last(following)
        tick = following


async def test_a_cron_schedule_runs(storage: Storage, clock: Clock) -> None:
    note = Note()
    flow = flow_of(note)
    async with ticking(storage, flow, schedules=[cron("0 10 * * 1-5", flow, tz="Europe/Berlin")]):
        clock.now = datetime(2026, 11, 16, 10, 0, 1, tzinfo=BERLIN).timestamp()
        assert await settled(note, 1) == [datetime(2026, 11, 16, 9, tzinfo=UTC)]


def test_bad_schedules_are_refused() -> None:
    flow, other = flow_of(Note()), flow_of(Note(), "other")
    with pytest.raises(InvalidOption, match=r"every\(0\): give a number of seconds"):
        every(0, flow)
    with pytest.raises(InvalidOption, match=r"cron\('0 9 \* \*'\): .* give five fields"):
        cron("0 9 * *", flow)
    with pytest.raises(InvalidOption, match="time zone, such as 'Europe/Berlin'"):
        cron("0 9 * * *", flow, tz="Berlin")
    with pytest.raises(InvalidOption, match="choose 'skip', 'once' or 'all'"):
        every(60, flow, missed="never")  # type: ignore[arg-type]
    for seconds in (1e18, 1e300, 10**400):
        with pytest.raises(InvalidOption, match="beyond the year 9999"):
            every(seconds, flow)
    wrong: Any
    for wrong in ("nightly", NodeFlow):
        with pytest.raises(InvalidOption, match=r"run flows, not .*: give a NodeFlow"):
            every(60, wrong)
    for wrong in (5, [1], "text"):
        with pytest.raises(InvalidOption, match=r"shared=.*: give a dict"):
            every(60, flow, shared=wrong)
    for wrong in (5, every(60, flow)):
        with pytest.raises(InvalidOption, match=r"schedules=.*: give a list, such as \[every\(3600, flow\)\]"):
            worker([flow], storage=MemoryStorage(), schedules=wrong)
    with pytest.raises(InvalidOption, match=r"the schedule 5: give every\(\.\.\.\) or cron\(\.\.\.\)"):
        worker([flow], storage=MemoryStorage(), schedules=[5])  # type: ignore[list-item]
    with pytest.raises(InvalidOption, match="two schedules are named 'nightly'"):
        worker([flow], storage=MemoryStorage(), schedules=[every(60, flow), every(30, flow)])
    with pytest.raises(InvalidOption, match="not one of this worker's"):
        worker([flow], storage=MemoryStorage(), schedules=[every(60, other)])


async def test_bad_changes_of_schedules_are_refused(storage: Storage) -> None:
    known, flow = Schedules(storage), flow_of(Note())
    await known.add(every(60, flow, shared={"n": 1}))
    with pytest.raises(InvalidOption, match=r"takes a schedule, not 5: give every\(\.\.\.\) or cron"):
        await known.add(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="shared=5: give a dict"):
        await known.change("nightly", shared=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="beyond the year 9999"):
        await known.change("nightly", every=1e18)
    assert [(each.every, each.shared) async for each in known.list()] == [(60, {"n": 1})]


async def test_a_worker_starts_while_another_process_holds_its_schedule(storage: Storage) -> None:
    flow = flow_of(Note())
    await Schedules(storage).add(every(60, flow))
    await storage.perform(Claim(storage.address(SCHEDULES, "nightly"), storage.ids(), 3600.0))
    async with asyncio.timeout(5), ticking(storage, flow, schedules=[every(60, flow)]):
        pass


def test_a_worker_starts_although_another_one_declares_its_schedule_while_the_storage_does_not_answer() -> None:
    async def start(store: SimulatedStore) -> None:
        async with store.storage() as storage:
            flow = linear(Note(), name="nightly", storage=storage)
            async with worker([flow], schedules=[every(3600, flow, name="hourly")]):
                pass

    async def main(simulation: Simulation) -> None:
        # The answer to the claim of the first worker, whose lease ends meanwhile.
        store = SimulatedStore(simulation, fault=lambda at, number: "silent" if (at, number) == (one, 4) else None)
        one, other = simulation.process("one"), simulation.process("other")
        starting = one.start(start(store))
        await asyncio.sleep(4)
        await other.start(start(store))
        await starting

    for seed in range(5):
        simulation = Simulation(seed)
        simulation.run(main(simulation))
