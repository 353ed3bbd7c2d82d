"""A storm: runs with waits, children, partitions and a schedule, while all processes are killed and suspended.

Every run must end as an undisturbed one, the runs of a partition in turn, each tick once, with each answer used once.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from stepwell import MemoryStorage, Storage
from stepwell.nodes import NodeFlow, RunHandle, Schedules, worker
from stepwell.nodes.run.table import ENDED, MAIL, PARAMS, table_of
from stepwell.record import PARTITIONS, RUNS, Stored
from stepwell.storage.operations import Get
from tests.backends import Backend
from tests.reliability.dose import LARGE, dose, seeded
from tests.reliability.run_roles import LEASE
from tests.reliability.storm_roles import CHILDREN, TICK, comparable, flows_of
from tests.reliability.workers import Worker, Workers
from tests.until import until

#: The number of worker processes.
AT_ONCE = 4
#: How many of ten runs are of a flow.
KINDS = ["plain", "plain", "plain", "resting", "asking", "asking", "patient", "parents", "mapping", "flaky"]


def quiet(*line: Any) -> None:
    """Report nothing."""


@dataclass
class Plan:
    """The runs of a storm, and the actions on them."""

    #: Flow, id, shared state, partition, delay and priority.
    submissions: list[list[Any]] = field(default_factory=list)
    #: Action, flow, id, and a delay after the submission.
    actions: list[list[Any]] = field(default_factory=list)

    def of(self, action: str) -> set[str]:
        """Return the ids of the runs with this action."""
        return {flow_id for known, _, flow_id, _ in self.actions if known == action}


def plan_of(choose: random.Random, count: int, partitions: int, poison: int) -> Plan:
    """Return random runs and actions, and ``poison`` runs that kill their process."""
    plan = Plan()
    for number in range(count):
        flow = choose.choice(KINDS)
        partition = choose.choice([None, choose.randrange(partitions)])
        after = choose.uniform(0, 1) if choose.random() < 0.1 else None
        flow_id = f"{flow}-{number:06d}"
        plan.submissions.append([flow, flow_id, {}, partition, after, choose.choice([0, 0, 0, 5])])
        if choose.random() < 0.1:
            plan.actions.append(["cancel", flow, flow_id, choose.uniform(0, 2)])
        elif choose.random() < 0.1:
            plan.actions.append(["pause", flow, flow_id, choose.uniform(0, 1)])
        if flow == "asking" and choose.random() < 0.5:
            plan.actions.append(["signal", flow, flow_id, choose.uniform(0, 0.5)])
    for number in range(poison):
        # In one partition, so that the run after it must not be harmed.
        for kills in (True, False):
            flow_id = f"poison-{number:06d}-{kills}"
            at = choose.randrange(len(plan.submissions)) if kills else len(plan.submissions)
            plan.submissions.insert(at, ["poison", flow_id, {"kills": kills}, "p", None, 0])
    return plan


class Storm:
    """The processes of a storm, and their reports."""

    def __init__(self, workers: Workers, url: str, choose: random.Random, plan: Plan, bug: str | None) -> None:
        self.workers = workers
        self.url = url
        self.choose = choose
        self.plan = plan
        self.bug = bug
        self.seen: list[Worker] = []
        self.stopped: set[int] = set()

    def start(self, role: str, **options: Any) -> Worker:
        process = self.workers.start(role, self.url, **options)
        self.seen.append(process)
        return process

    def reports(self, word: str) -> list[list[Any]]:
        return [line for process in self.seen for line in process.reported(word)]

    async def submit(self, kills: int, seconds: float) -> None:
        """Submit all runs in order, by processes that are killed and continued by others."""
        wanted = self.plan.submissions
        pause = seconds / len(wanted)
        while missing := self._unreported("submitted", wanted):
            process = self.start("storm_submit", submissions=missing, pause=pause)
            if kills > 0:
                kills -= 1
                await process.wait_for("submitted")
                await asyncio.sleep(self.choose.uniform(0, seconds / 10))
                kill(process)
            await until(lambda: not process.alive())

    def _unreported(self, word: str, wanted: Iterable[list[Any]]) -> list[list[Any]]:
        reported = {line[1] for line in self.reports(word)}
        return [each for each in wanted if each[1] not in reported]

    def start_answers(self) -> Worker:
        return self.start("storm_answer", answered=[line[1] for line in self.reports("answered")])

    def start_control(self) -> Worker:
        done = {(line[1], line[2]) for line in self.reports("acted")}
        return self.start("storm_control", plan=[each for each in self.plan.actions if (each[0], each[2]) not in done])

    def start_worker(self) -> Worker:
        return self.start("storm_worker", concurrency=self.choose.choice([2, 8, 16]), bug=self.bug)

    async def disturb(self, running: list[Worker], kills: int) -> None:
        """Kill or suspend processes at random times: mostly workers, sometimes those that answer and control."""
        starts: list[Callable[[], Worker]] = [self.start_answers, self.start_control, *[self.start_worker] * AT_ONCE]
        for _ in range(kills):
            await asyncio.sleep(self.choose.uniform(0.05, 0.3))
            at = self.choose.randrange(len(starts))
            if not running[at].alive():
                # A poison run has killed it.
                continue
            if self.choose.random() < 0.25:
                self.stopped.add(running[at].pid)
                running[at].signal(signal.SIGSTOP)
                # Longer than its leases.
                await asyncio.sleep(LEASE + 0.5)
                running[at].signal(signal.SIGCONT)
            else:
                kill(running[at])
                await running[at].wait_ended()
                running[at] = starts[at]()

    async def keep_running(self, running: list[Worker]) -> None:
        """Start a new worker for each one that a poison run has killed."""
        while True:
            for at in range(2, len(running)):
                if not running[at].alive():
                    running[at] = self.start_worker()
            await asyncio.sleep(0.05)


def kill(process: Worker) -> None:
    with suppress(ProcessLookupError):
        process.signal(signal.SIGKILL)


async def undisturbed() -> dict[str, list[dict[str, Any]]]:
    """Return the final states of runs that nothing disturbs, by their flow: with and without an answer in time."""
    storage = MemoryStorage()
    flows = flows_of(storage, quiet)
    finals: dict[str, list[dict[str, Any]]] = defaultdict(list)
    async with worker(flows.values()):
        late = await flows["patient"].submit({}, flow_id="late")
        handles = [late] + [
            await flow.submit({"kills": False} if name == "poison" else {}) for name, flow in flows.items()
        ]

        async def unfinished() -> list[RunHandle]:
            await answer_all(flows)
            await flows["flaky"].retry()
            return [handle for handle in handles if (await handle.status()).status != "finished"]

        await until(unfinished, lambda left: not left)
        for handle in handles:
            finals[(await handle.status()).flow].append(comparable(await handle.result()))
    await storage.close()
    return finals


async def answer_all(flows: dict[str, NodeFlow]) -> None:
    for flow in flows.values():
        for run in [run async for run in flow.runs("parked") if run.flow_id != "late"]:
            for wait in run.waits:
                if wait.id:
                    await flow.answer(wait.id, {"node": wait.node, "by": "test"})


async def drained(flows: dict[str, NodeFlow], storm: Storm, limit: float) -> None:
    """Wait until every run has ended and every action was done; raise ``AssertionError`` after ``limit`` seconds."""
    left: list[Any] = []
    try:
        async with asyncio.timeout(limit):
            while True:
                runs = [run for flow in flows.values() for run in [run async for run in flow.runs()]]
                left = [run for run in runs if not (run.flow == "poison" and run.status == "stuck")]
                left += [each for each in storm.plan.actions if (each[0], each[2]) not in acted(storm)]
                if not left and not await flows["plain"].storage.due(RUNS, before=float(1 << 40)):
                    return
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"{len(left)} runs and actions have not ended: {left[:5]}") from None


def acted(storm: Storm) -> dict[tuple[str, str], list[Any]]:
    return {(line[1], line[2]): line for line in storm.reports("acted")}


async def brew(
    backend: Backend,
    workers: Workers,
    *,
    runs: int,
    kills: int,
    limit: float,
    partitions: int,
    poison: int = 0,
    bug: str | None = None,
) -> None:
    """Run a storm, and check everything afterwards."""
    choose = seeded()
    url = backend.place()
    storage = backend.storage(url, sweep_every=None)
    await storage.open()
    flows = flows_of(storage, quiet)
    finals = await undisturbed()
    storm = Storm(workers, url, choose, plan_of(choose, runs, partitions, poison), bug)
    running = [storm.start_answers(), storm.start_control(), *(storm.start_worker() for _ in range(AT_ONCE))]
    for process in running[2:]:
        await process.wait_for("works")
    keeping = asyncio.create_task(storm.keep_running(running))
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(storm.disturb(running, kills))
            group.create_task(storm.submit(max(1, kills // 10), kills * 0.5))
        await drained({name: flow for name, flow in flows.items() if name != "ticking"}, storm, limit)
        await until(lambda: flows["ticking"].runs("finished"), lambda runs: len(runs) >= 2)
        await Schedules(storage).pause("clock")
        await drained(flows, storm, 30)
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])
    await check(storage, storm, finals)
    again = Counter(line[1] for line in storm.reports("ran"))
    print(
        f"{backend.name}: {runs} runs, {kills} kills and stops, {len(storm.seen)} processes, "
        f"{sum(count - 1 for count in again.values())} of {len(again)} nodes ran again"
    )


async def check(storage: Storage, storm: Storm, finals: dict[str, list[dict[str, Any]]]) -> None:
    """Check that nothing was lost, doubled, out of turn or left over."""
    stored = {entry.key: entry async for entry in storage.scan(RUNS)}
    tables = {flow_id: table_of(entry.head, entry.address) or {} for flow_id, entry in stored.items()}
    states = {flow_id: entry.state.data for flow_id, entry in stored.items()}
    flow_of = {flow_id: entry.place.flow or "" for flow_id, entry in stored.items()}
    status = {flow_id: table["status"] for flow_id, table in tables.items()}

    submitted = {each[1] for each in storm.plan.submissions}
    children = {flow_id for flow_id, table in tables.items() if "parent" in table}
    ticks = {flow_id for flow_id in stored if flow_of[flow_id] == "ticking"}
    assert set(stored) - children - ticks == submitted

    # Every run ends as an undisturbed one, unless it was cancelled.
    done = acted(storm)
    cancelled = {flow_id for action, flow_id in done if action == "cancel" and done[action, flow_id][3] == "cancelled"}
    stuck = {each[1] for each in storm.plan.submissions if each[0] == "poison" and each[2]["kills"]}
    for flow_id, state in states.items():
        wanted = "finished"
        if flow_id in cancelled or tables[flow_id].get("parent") in cancelled:
            wanted = "cancelled"
        elif flow_id in stuck:
            wanted = "stuck"
        if flow_id in children and wanted == "cancelled" and status[flow_id] == "finished":
            # It finished before its parent was cancelled.
            wanted = "finished"
        assert status[flow_id] == wanted, f"{flow_id} is {status[flow_id]}, not {wanted}"
        if wanted == "finished":
            final = comparable(state)
            # An item of ChildMap.
            final.pop("item", None)
            assert final in finals[flow_of[flow_id]], f"{flow_id} ended as {state}"

    born = Counter(table.get("parent", "") for table in tables.values())
    for flow_id, flow in flow_of.items():
        if status[flow_id] == "finished":
            assert born[flow_id] == CHILDREN.get(flow, 0), f"{flow_id} has {born[flow_id]} children"
    check_partitions(storm.plan, states, tables, flow_of)
    check_answers(storm, states, flow_of)
    await check_ticks(storage, storm, ticks)
    check_ends(storm, cancelled)
    await check_rest(storage, stored, stuck, len(storm.seen))


def times(state: dict[str, Any]) -> list[list[float]]:
    return [value for key, value in state.items() if key.startswith("at ")]


def check_partitions(
    plan: Plan, states: dict[str, Any], tables: dict[str, dict[str, Any]], flow_of: dict[str, str]
) -> None:
    """Check that no two runs of a partition ran at the same time, and that they started in order."""
    nodes: dict[tuple[str, str], list[tuple[float, float, str]]] = defaultdict(list)
    for flow_id, state in states.items():
        if "partition" in tables[flow_id]:
            where = flow_of[flow_id], tables[flow_id]["partition"]
            nodes[where] += [(began, ended, flow_id) for began, ended in times(state)]
    for where, known in nodes.items():
        for (_, ended, one), (began, _, other) in pairwise(sorted(known)):
            assert one == other or ended <= began, f"{one} and {other} ran at once in partition {where}"
    # Paused, failed and delayed runs have left their place.
    out_of_turn = plan.of("pause") | {each[1] for each in plan.submissions if each[4] is not None}
    turns: dict[tuple[str, str, int], list[str]] = defaultdict(list)
    for flow, flow_id, _, partition, _, priority in plan.submissions:
        if partition is not None and flow_id not in out_of_turn and flow != "flaky" and times(states[flow_id]):
            turns[flow, partition, priority].append(flow_id)
    for where_in_turn, runs in turns.items():
        for run, following in pairwise(runs):
            ended, began = max(times(states[run]))[1], min(times(states[following]))[0]
            assert ended <= began, f"{following} ran before {run} in {where_in_turn}"


def check_answers(storm: Storm, states: dict[str, Any], flow_of: dict[str, str]) -> None:
    """Check that each wait used one answer, the same one in each execution."""
    sent = {line[2] for line in storm.reports("answering")}
    used: dict[str, set[str]] = defaultdict(set)
    for _, step_id, by in storm.reports("took"):
        used[step_id].add(by)
    for step_id, values in used.items():
        assert len(values) == 1, f"{step_id} used {values}"
    for flow_id, state in states.items():
        for key, answers in state.items():
            if key.startswith("took "):
                assert len(answers) == 1, f"{flow_id} used {answers}"
                assert answers[0]["by"] in sent or answers[0]["by"].startswith("signal-")


async def check_ticks(storage: Storage, storm: Storm, ticks: set[str]) -> None:
    """Check that there is one run for each tick from the first to the last."""
    at = sorted(datetime.fromisoformat(flow_id.removeprefix("clock@")) for flow_id in ticks)
    assert at, "the schedule has not ticked"
    assert at[-1] == (await Schedules(storage).get("clock")).last
    for tick, following in pairwise(at):
        assert following - tick == timedelta(seconds=TICK), f"ticks are missing between {tick} and {following}"
    ran = {line[1].partition("/")[0] for line in storm.reports("ran")}
    assert ticks <= ran


def check_ends(storm: Storm, cancelled: set[str]) -> None:
    """Check that no node of a cancelled run starts later, except in a process that was suspended."""
    at = {line[2]: line[4] for line in storm.reports("acted") if line[1] == "cancel"}
    for process in storm.seen:
        if process.pid not in storm.stopped:
            for _, step_id, time in process.reported("ran"):
                flow_id = step_id.partition("/")[0]
                assert flow_id not in cancelled or time <= at[flow_id] + 2 * LEASE, f"{step_id} ran after its end"


async def check_rest(storage: Storage, stored: dict[str, Any], stuck: set[str], killed: int) -> None:
    """Check that no queue, deadline, part or lock is left over."""
    assert await storage.queues(RUNS, limit=10) == []
    assert await storage.due(RUNS, before=float(1 << 40)) == []
    for flow_id, entry in stored.items():
        record: Stored | None = await storage.perform(Get(entry.address, parts=True))
        assert record is not None
        # Mail that was sent while the run finished stays in its record, unread. A fork of the run needs its params.
        parts = [name for name in record.parts or () if not name.startswith((MAIL, PARAMS))]
        assert flow_id in stuck or not parts, f"{flow_id} has the parts {parts}"
    # A worker that was killed just after the end of the last run of a partition has not removed its lock.
    locks = [entry.state.data["run"] async for entry in storage.scan(PARTITIONS)]
    assert len(locks) <= killed
    for flow_id in locks:
        assert (table_of(stored[flow_id].head, stored[flow_id].address) or {})["status"] in ENDED
    print(f"{len(locks)} locks of partitions are left")


@pytest.fixture
def place(shared_backend: Backend) -> Backend:
    if not shared_backend.durable:
        pytest.skip("this backend does not survive a kill")
    if not LARGE and shared_backend.name != "sqlite":
        pytest.skip("other backends with the large dose only")
    return shared_backend


async def test_every_run_of_a_storm_ends_as_an_undisturbed_one(place: Backend, workers: Workers) -> None:
    runs, kills = dose("STORM", 30, 1000), dose("STORM_KILLS", 6, 200)
    # test_control.py has the small dose of poison.
    poison = dose("POISON", 0, 5)
    partitions = max(3, runs // 40)
    await brew(place, workers, runs=runs, kills=kills, partitions=partitions, poison=poison, limit=60 + runs / 2)


@pytest.mark.parametrize(
    ("bug", "limit", "words"),
    [
        ("shared partitions", 30, "ran (at once|before)"),
        ("lost answers", 3, "have not ended"),
        ("lost ticks", 30, "ticks are missing"),
    ],
)
async def test_a_storm_finds_a_bug(place: Backend, workers: Workers, bug: str, limit: float, words: str) -> None:
    if place.name != "sqlite":
        pytest.skip("a bug is found on one backend")
    if not LARGE and bug != "shared partitions":
        pytest.skip("other bugs with the large dose only")
    with pytest.raises(AssertionError, match=words):
        await brew(place, workers, runs=40, kills=3, partitions=1, limit=limit, bug=bug)
