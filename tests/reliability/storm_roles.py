"""The flows of the storm, and the roles of its processes: they submit, run, answer, cancel, pause and retry runs."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import zlib
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

from stepwell import Storage
from stepwell.errors import Conflict, Parked, RunBusy, RunCancelled, RunFinished, RunPaused, UnknownRun, UsageError
from stepwell.nodes import BatchNode, ChildMap, Node, NodeFlow, Sleep, Wait, every, linear, parallel, step, worker
from stepwell.nodes.queue import partitions
from stepwell.nodes.run import journal, table
from stepwell.nodes.workers import stored
from stepwell.record import RUNS
from tests.reliability.queue_roles import hurry
from tests.until import until

Report = Callable[..., None]

#: Seconds between two ticks of the schedule.
TICK = 1
#: The number of children of each run of a flow.
CHILDREN = {"parents": 2, "mapping": 3}
#: The number of partitions of child runs.
CHILD_PARTITIONS = 5
#: The timeout of the wait of a run of the flow "patient", in seconds.
PATIENCE = 0.5
#: A few calls of one process at once.
AT_ONCE = 8


def stamp(shared: dict[str, Any], name: str, began: float) -> None:
    """Store the time of a node in the shared state: only the runner that commits has stored it."""
    shared[f"at {name}"] = [began, monotonic()]


class Mark(Node):
    """Reports each of its executions, and appends its step to the shared state, so that a second commit is detected."""

    def __init__(self, name: str, report: Report, seconds: float = 0.05) -> None:
        super().__init__(name=name)
        self.report = report
        self.seconds = seconds

    def prep(self, shared: dict[str, Any]) -> Any:
        return monotonic()

    async def exec(self, began: Any) -> Any:
        self.report("ran", step().id, monotonic())
        await asyncio.sleep(random.uniform(0, self.seconds))
        return None

    def post(self, shared: dict[str, Any], began: Any, result: Any) -> None:
        shared[f"ran {self.name}"] = [*shared.get(f"ran {self.name}", []), f"{step().node}/{step().visit}"]
        stamp(shared, self.name, began)


class Flaky(Mark):
    """Fails sometimes; the run is retried later."""

    async def exec(self, began: Any) -> Any:
        await super().exec(began)
        if random.random() < 0.4:
            raise RuntimeError("by chance")


class Poison(Mark):
    """Kills its process if the shared state says so."""

    def prep(self, shared: dict[str, Any]) -> Any:
        return [monotonic(), shared["kills"]]

    async def exec(self, prepared: Any) -> Any:
        await super().exec(None)
        if prepared[1]:
            os.kill(os.getpid(), signal.SIGKILL)

    def post(self, shared: dict[str, Any], prepared: Any, result: Any) -> None:
        super().post(shared, prepared[0], result)


class Squares(BatchNode):
    """A batch of a few items."""

    def __init__(self, report: Report) -> None:
        super().__init__(name="squares", concurrency=3)
        self.report = report

    def prep(self, shared: dict[str, Any]) -> Any:
        shared["prepared"] = shared.get("prepared", 0) + 1
        return range(12)

    async def exec(self, item: int) -> int:
        self.report("ran", step().id, monotonic())
        await asyncio.sleep(random.uniform(0, 0.02))
        return item * item

    def post(self, shared: dict[str, Any], items: list[int], results: list[int]) -> None:
        shared["squares"] = results
        stamp(shared, self.name, monotonic())


class Take(Wait):
    """Reports and appends its answer, so that a second use is detected."""

    def __init__(self, name: str, report: Report, **options: Any) -> None:
        super().__init__(name, **options)
        self.report = report

    def post(self, shared: dict[str, Any], question: Any, answer: Any) -> None:
        self.report("took", step().id, answer["by"])
        shared[f"took {self.name}"] = [*shared.get(f"took {self.name}", []), answer]
        stamp(shared, self.name, monotonic())


class Spawn(Mark):
    """Starts two child runs, one of them in a partition, and waits for both."""

    def __init__(self, name: str, report: Report, flow: NodeFlow) -> None:
        super().__init__(name, report)
        self.flow = flow

    async def exec(self, began: Any) -> Any:
        await super().exec(began)
        partition = zlib.crc32(step().flow_id.encode()) % CHILD_PARTITIONS
        children = [
            await step().child(self.flow, {}, id="alone"),
            await step().child(self.flow, {}, id="in turn", partition=partition),
        ]
        return [comparable(await child.result()) for child in children]

    def post(self, shared: dict[str, Any], began: Any, finals: Any) -> None:
        super().post(shared, began, finals)
        shared["children"] = finals


class Each(ChildMap):
    """Runs a child for each of three items, two at once."""

    def __init__(self, flow: NodeFlow) -> None:
        super().__init__(flow, name="each", concurrency=2)

    def prep(self, shared: dict[str, Any]) -> Any:
        return [{"item": item} for item in range(3)]

    def post(self, shared: dict[str, Any], items: Any, finals: list[dict[str, Any]]) -> None:
        shared["children"] = [comparable(final) for final in finals]
        stamp(shared, self.name, monotonic())


def comparable(final: dict[str, Any]) -> dict[str, Any]:
    """Return a final state without its times and without the names of those who answered."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(inside) for key, inside in value.items() if key != "by" and not key.startswith("at ")}
        return [without(inside) for inside in value] if isinstance(value, list) else value

    return without(final)  # type: ignore[no-any-return]


def flows_of(storage: Storage, report: Report) -> dict[str, NodeFlow]:
    """Return the flows of the storm by their names."""

    def mark(name: str) -> Mark:
        return Mark(name, report)

    def flow(name: str, *nodes: Any, **options: Any) -> NodeFlow:
        return linear(*nodes, name=name, storage=storage, keep=True, **options)

    both = parallel(Take("left", report), linear(mark("busy"), Take("right", report), name="second"), name="both")
    child = flow("child", mark("first"), Take("approve", report), Sleep(0.05), mark("last"))
    soon = Take("soon", report, timeout=PATIENCE)
    patient = flow("patient", mark("first"), soon, mark("last")).connect(soon, mark("gave up"), "timeout")
    made = [
        child,
        patient,
        flow("plain", mark("first"), mark("last")),
        flow("resting", mark("first"), Sleep(0.05), Squares(report), mark("last")),
        flow("asking", mark("first"), both, Take("go", report, signal="go"), mark("last")),
        flow("parents", mark("first"), Spawn("spawn", report, child), mark("last")),
        flow("mapping", mark("first"), Each(child), mark("last")),
        flow("flaky", mark("first"), Flaky("flaky", report), mark("last")),
        flow("poison", Poison("poison", report), max_recoveries=2),
        flow("ticking", mark("first")),
    ]
    return {each.name: each for each in made}


async def storm_worker(storage: Storage, report: Report, *, concurrency: int, bug: str | None = None) -> None:
    """Run the runs of all flows until this process is killed."""
    hurry_all()
    if bug is not None:
        BUGS[bug]()
    flows = flows_of(storage, report)
    async with worker(flows.values(), concurrency=concurrency, schedules=[schedule(flows)]):
        report("works")
        await asyncio.Event().wait()


def schedule(flows: dict[str, NodeFlow]) -> Any:
    return every(TICK, flows["ticking"], name="clock", missed="all")


def hurry_all() -> None:
    """Shorten all times after which a process takes over the work of another."""
    hurry()
    setattr(table, "REPORT", 1.0)  # noqa: B010 - it is final


def _share_partitions() -> None:
    """Let all runs of a partition start."""

    async def acquire(*run: Any) -> None:
        pass

    async def check(repairs: partitions.Repairs) -> None:
        storage = repairs._storage
        for name in await storage.queues(RUNS, limit=partitions.AT_ONCE):
            for waiting in await storage.queued(RUNS, name if "/" in name else "-"):
                await partitions._enqueue(storage, name, waiting)

    partitions.acquire = acquire
    setattr(partitions.Repairs, "check", check)  # noqa: B010 - mypy refuses the assignment of a method


def _lose_answers() -> None:
    """Drop every third answer."""
    deliver = journal.Journal.deliver

    def lossy(run: journal.Journal) -> bool:
        for name in run.mailbox.of_kind("answer"):
            if random.random() < 1 / 3:
                run.mailbox.use(name)
        return deliver(run)

    setattr(journal.Journal, "deliver", lossy)  # noqa: B010 - mypy refuses the assignment of a method


def _lose_ticks() -> None:
    """Drop every second tick."""
    due = stored._due
    stored._due = lambda *spec: [tick for tick in due(*spec) if tick // TICK % 2]


#: Bugs that the test must find, by name.
BUGS: dict[str, Callable[[], None]] = {
    "shared partitions": _share_partitions,
    "lost answers": _lose_answers,
    "lost ticks": _lose_ticks,
}


async def storm_submit(storage: Storage, report: Report, *, submissions: list[list[Any]], pause: float) -> None:
    """Submit runs, each given by flow, id, shared state, partition, delay and priority, and report each."""
    flows = flows_of(storage, report)
    for name, flow_id, shared, partition, after, priority in submissions:
        report("submitting", flow_id)
        await flows[name].submit(shared, flow_id=flow_id, partition=partition, after=after, priority=priority)
        report("submitted", flow_id)
        await asyncio.sleep(random.uniform(0, 2 * pause))


async def storm_answer(storage: Storage, report: Report, *, answered: list[str]) -> None:
    """Answer each wait that opens until this process is killed: some twice, and some by running the run here."""
    hurry_all()
    flows = flows_of(storage, report)
    done = set(answered)
    running: set[asyncio.Task[None]] = set()
    me, number = storage.ids(), 0

    async def one(flow: NodeFlow, wait_id: str, node: str, *, run: bool) -> None:
        nonlocal number
        number += 1
        by = f"{me}-{number}"
        report("answering", wait_id, by)
        try:
            if run:
                await flow.answer(wait_id, {"node": node, "by": by}, run=True)
            else:
                await flow.answer(wait_id, {"node": node, "by": by})
        except (RunBusy, Conflict):
            # It is not known whether the answer was stored.
            done.discard(wait_id)
            return
        except (Parked, RunPaused, RunCancelled, RunFinished):
            pass
        report("answered", wait_id)

    while True:
        for name in ("asking", "child", "patient"):
            async for run in flows[name].runs():
                if name == "patient" and random.random() < 0.5:
                    # It may time out first.
                    continue
                for wait in run.waits:
                    if not wait.id or wait.id in done:
                        continue
                    done.add(wait.id)
                    here = random.random() < 0.1 and len(running) < AT_ONCE
                    task = asyncio.create_task(one(flows[name], wait.id, wait.node, run=here))
                    running.add(task)
                    task.add_done_callback(running.discard)
                    if not here:
                        await task
                        if random.random() < 0.3:
                            await one(flows[name], wait.id, wait.node, run=False)
        await asyncio.sleep(random.uniform(0, 0.1))


async def storm_control(storage: Storage, report: Report, *, plan: list[list[Any]]) -> None:
    """Retry failed runs; cancel, pause and signal runs: action, flow, id, and a delay after the submission."""
    hurry_all()
    flows = flows_of(storage, report)
    limit = asyncio.Semaphore(AT_ONCE)

    async def act(action: str, flow: NodeFlow, flow_id: str, delay: float) -> None:
        await until(lambda: _exists(flow, flow_id))
        await asyncio.sleep(delay)
        async with limit:
            report("acted", action, flow_id, await ACTIONS[action](flow, flow_id), monotonic())

    async def retry() -> None:
        while True:
            for flow in flows.values():
                for _ in range(await flow.retry(status="failed")):
                    report("retried", flow.name)
            await asyncio.sleep(0.2)

    async with asyncio.TaskGroup() as group:
        group.create_task(retry())
        for action, name, flow_id, delay in plan:
            group.create_task(act(action, flows[name], flow_id, delay))


async def _exists(flow: NodeFlow, flow_id: str) -> bool:
    try:
        await flow.status(flow_id)
    except UnknownRun:
        return False
    return True


async def _cancel(flow: NodeFlow, flow_id: str) -> str:
    try:
        await flow.cancel(flow_id, "enough")
    except RunFinished:
        return "finished"
    return "cancelled"


async def _pause(flow: NodeFlow, flow_id: str) -> str:
    """Pause a run, and resume it here after some time; repeat what another process began."""
    while True:
        try:
            await flow.pause(flow_id)
            break
        except (RunFinished, RunCancelled):
            return "ended"
        except UsageError:
            # It has failed, and is retried.
            await asyncio.sleep(0.1)
    await asyncio.sleep(random.uniform(0, 0.3))
    while True:
        try:
            await flow.resume(flow_id)
        except (RunBusy, Conflict):
            # Another run has the partition, or another runner this run.
            if (await flow.status(flow_id)).status != "paused":
                return "resumed"
            await asyncio.sleep(0.05)
        except (Parked, RuntimeError):
            return "resumed"
        else:
            return "resumed"


async def _signal(flow: NodeFlow, flow_id: str) -> str:
    assert flow.storage is not None
    by = f"signal-{flow.storage.ids()}"
    try:
        await flow.signal(flow_id, "go", {"node": "go", "by": by})
    except (RunFinished, RunCancelled):
        return "ended"
    return by


ACTIONS: dict[str, Callable[[NodeFlow, str], Awaitable[str]]] = {"cancel": _cancel, "pause": _pause, "signal": _signal}
