"""Paused runs, retried runs, and runs whose runner dies again and again."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stepwell import MemoryStorage, Storage
from stepwell.errors import (
    FlowChanged,
    InvalidOption,
    LeaseLost,
    Parked,
    RunBusy,
    RunCancelled,
    RunFinished,
    RunPaused,
    RunStuck,
    StorageUnavailable,
    UnknownRun,
    UsageError,
)
from stepwell.errors.wording import counted
from stepwell.nodes import Node, NodeFlow, RunHandle, Sleep, StoredRun, Wait, linear, parallel, step, worker
from stepwell.nodes.control import ending
from stepwell.nodes.run import deaths, lease, mail
from stepwell.nodes.run import journal as journal_module
from stepwell.record import RUNS
from stepwell.storage import Claim
from stepwell.testing import Clock, FaultyStorage
from tests.backends import Backend
from tests.constants import Constants
from tests.nodes.test_cancel import begun, has_status
from tests.nodes.test_durable import Boom, Say
from tests.nodes.test_mail import Gate, HeldPark, finished, has_mail, one_wait, parts_of, waits_of
from tests.nodes.test_wait import parked
from tests.until import until


@pytest.fixture
async def storage(backend: Backend) -> Storage:
    storage = backend.storage()
    await storage.open()
    return storage


@pytest.fixture
async def queues() -> AsyncIterator[Storage]:
    async with MemoryStorage() as storage:
        yield storage


async def paused(running: asyncio.Task[Any]) -> RunPaused:
    with pytest.raises(RunPaused) as caught:
        await asyncio.wait_for(running, 20)
    return caught.value


async def test_a_running_run_pauses_after_its_node_and_resumes_there(storage: Storage) -> None:
    gate, ran, events = Gate(), list[str](), list[str]()
    flow = linear(Say(ran, "a"), gate, Say(ran, "b"), storage=storage)
    running = await begun(flow, gate, on_event=lambda event: events.append(f"{event.kind} {event.node}"))
    pausing = asyncio.create_task(flow.pause("r"))
    await until(lambda: has_mail(storage))
    assert not pausing.done()
    gate.opened.set()
    assert str(await paused(running)) == "run 'r' was paused at 'b'; continue it with flow.resume('r')"
    await pausing
    run = await flow.status("r")
    assert (run.status, run.node, run.path) == ("paused", "b", ("a", "gate"))
    assert events[-2:] == ["node.finished gate", "run.parked flow"]
    assert await parts_of(storage) == set()
    assert await storage.due(RUNS, before=1e12) == []
    assert [run.flow_id async for run in flow.runs("paused")] == ["r"]
    await flow.pause("r")
    assert await flow.resume("r") == {"said": ["a", "b"]}
    assert ran == ["r/a/1", "r/b/1"]


async def test_all_branches_end_their_node_before_a_pause(storage: Storage) -> None:
    gates, ran = [Gate("left"), Gate("right")], list[str]()
    branches = [linear(gate, Say(ran, f"after {gate.name}")) for gate in gates]
    both = parallel(*branches, name="p", merge={"said": lambda values: [*values[0], *values[1]]})
    flow = NodeFlow(start=both, storage=storage)
    running = await begun(flow, gates[0])
    await gates[1].entered.wait()
    pausing = asyncio.create_task(flow.pause("r"))
    await until(lambda: has_mail(storage))
    for gate in gates:
        gate.opened.set()
        await asyncio.sleep(0)
    await paused(running)
    await pausing
    assert ran == []
    assert await flow.resume("r") == {"said": ["after left", "after right"]}


async def test_a_parked_run_is_paused_at_once_and_waits_again_when_it_is_resumed(storage: Storage) -> None:
    flow = linear(Wait("x"), storage=storage)
    wait = await parked(flow.run(flow_id="r"))
    await flow.pause("r")
    assert (await flow.status("r")).status == "paused"
    await flow.answer(wait.id, 1)
    async with worker([flow]):
        await asyncio.sleep(0.1)
        assert (await flow.status("r")).status == "paused"
    assert await flow.resume("r") == {"x": 1}
    wait = await parked(flow.run(flow_id="again"))
    await flow.pause("again")
    assert (await parked(flow.resume("again"))).id == wait.id
    assert (await flow.status("again")).status == "parked"


async def test_a_timeout_that_passes_during_a_pause_fires_when_the_run_is_resumed(
    backend: Backend, clock: Clock
) -> None:
    storage = backend.storage(clock=clock)
    await storage.open()
    flow = linear(Sleep(60), Say([], "a"), storage=storage)
    await parked(flow.run(flow_id="r"))
    await flow.pause("r")
    clock.advance(59)
    await parked(flow.resume("r"))
    await flow.pause("r")
    clock.advance(2)
    assert await flow.resume("r") == {"said": ["a"]}


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_pause_around_the_park_commit_is_not_lost(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    flow = one_wait(storage)

    async def pause() -> None:
        async def message(place: Any, table: Any) -> dict[str, Any]:
            return {}

        await mail.send(storage, "r", "pause", message)

    HeldPark(storage, monkeypatch, **{when: pause})  # type: ignore[arg-type]
    running = asyncio.create_task(flow.run(flow_id="r"))
    if when == "before":
        await paused(running)
    else:
        await parked(running)
        async with worker([flow]):
            await until(lambda: has_status(flow, "paused"))
    assert (await flow.status("r")).status == "paused"
    assert await flow.answer((await waits_of(flow))["x"], 1, run=True) == {"x": 1, "said": ["end"]}


@pytest.mark.parametrize("nested", [False, True])
async def test_a_run_in_its_last_node_finishes_instead_of_pausing(storage: Storage, nested: bool) -> None:
    gate, ran = Gate(), list[str]()
    last = linear(Say(ran, "a"), gate, name="f", storage=storage)
    flow = NodeFlow(start=last, storage=storage) if nested else last
    running = await begun(flow, gate)
    pausing = asyncio.create_task(flow.pause("r"))
    await until(lambda: has_mail(storage))
    # The runner reads the mail before its node ends.
    await asyncio.sleep(0.05)
    gate.opened.set()
    assert await asyncio.wait_for(running, 20) == {"said": ["a"]}
    with pytest.raises(RunFinished):
        await pausing


async def test_a_retried_run_does_not_obey_a_pause_that_came_too_late(queues: Storage) -> None:
    gate, broken = Gate(), True

    class Fragile(Node):
        async def exec(self, prep_res: Any) -> None:
            gate.entered.set()
            await gate.opened.wait()
            if broken:
                raise Boom

    flow = linear(Fragile, Say([], "a"), storage=queues, keep=True)
    running = await begun(flow, gate)
    pausing = asyncio.create_task(flow.pause("r"))
    await until(lambda: has_mail(queues))
    gate.opened.set()
    with pytest.raises(Boom):
        await running
    with pytest.raises(UsageError, match="run 'r' is failed"):
        await pausing
    broken = False
    assert await flow.retry("r") == 1
    async with worker([flow]):
        assert await finished(flow, "r") == {"said": ["a"]}


async def test_runs_that_have_ended_or_failed_cannot_be_paused(storage: Storage) -> None:
    flow = linear(Say([], "a", fails=[Boom()]), Wait("x"), storage=storage)
    with pytest.raises(UnknownRun):
        await flow.pause("r")
    with pytest.raises(Boom):
        await flow.run(flow_id="r")
    with pytest.raises(UsageError, match="run 'r' is failed"):
        await flow.pause("r")
    await parked(flow.resume("r"))
    await flow.cancel("r")
    with pytest.raises(RunCancelled):
        await flow.pause("r")
    await parked(flow.run(flow_id="ended"))
    await flow.answer("ended", 1, run=True)
    with pytest.raises(RunFinished):
        await flow.pause("ended")


async def test_a_queued_run_is_paused_and_starts_when_it_is_resumed(queues: Storage) -> None:
    ran: list[str] = []
    flow = linear(Say(ran, "a"), storage=queues)
    for partition in (None, "p"):
        handle = await flow.submit(partition=partition, params={"n": 1})
        await flow.pause(handle.id)
        following = await flow.submit(partition=partition)
        async with worker([flow]):
            assert await following.result(20) == {"said": ["a"]}
        assert (await handle.status()).status == "paused"
        assert await flow.resume(handle.id) == {"said": ["a"]}
    assert len(ran) == 4


async def test_a_run_of_another_flow_is_refused_with_what_was_asked(storage: Storage) -> None:
    flow, other = linear(Wait("x"), name="one", storage=storage), linear(Say([], "a"), name="other", storage=storage)
    await parked(flow.run(flow_id="r"))
    for act, done in (
        (other.cancel("r"), "cancelled"),
        (other.pause("r"), "paused"),
        (other.answer("r", 1), "answered"),
        (other.signal("r", "go"), "signalled"),
        (other.resume("r"), "resumed"),
    ):
        with pytest.raises(FlowChanged) as refused:
            await act
        said = f"run 'r' cannot be {done} with this flow: it is a run of flow 'one', not of 'other'"
        assert str(refused.value) == said
    await flow.pause("r")
    with pytest.raises(FlowChanged, match="run 'r' cannot be retried with this flow"):
        await other.retry("r")


# Retries


async def test_failed_runs_are_retried_by_a_worker_where_they_stopped(queues: Storage) -> None:
    ran: list[str] = []
    broken = True

    class Fragile(Node):
        def exec(self, prep_res: Any) -> None:
            if broken:
                raise Boom

    flow = linear(Say(ran, "a"), Fragile, storage=queues, keep=True)
    for number in range(5):
        with pytest.raises(Boom):
            await flow.run(flow_id=f"r{number}")
    broken = False
    assert await flow.retry(limit=2) == 2
    assert len([run async for run in flow.runs("queued")]) == 2
    with pytest.raises(UnknownRun, match="there is no run 'typo'") as unknown:
        await flow.retry(["r0", "typo", "r1", "none"])
    assert unknown.value.__notes__ == ["There is no run 'none' either. No run was retried."]
    assert await flow.retry(each for each in ["r0", "r1", "r2", "r3", "r4"]) == 3
    assert await flow.retry() == 0
    async with worker([flow]):
        for number in range(5):
            assert await finished(flow, f"r{number}") == {"said": ["a"]}
    assert len(ran) == 5
    assert await queues.queues(RUNS, limit=10) == []
    await linear(Say([], "a"), storage=queues).run(flow_id="gone")
    # It has finished, perhaps after a retry of somebody else.
    assert await flow.retry("gone") == 0
    with pytest.raises(InvalidOption, match="choose 'failed', 'stuck' or 'paused'"):
        await flow.retry(status="parked")  # type: ignore[arg-type]
    for wrong in (-1, True, 1.5):
        with pytest.raises(InvalidOption, match="limit"):
            await flow.retry(limit=wrong)  # type: ignore[arg-type]


async def test_paused_runs_are_handed_back_to_the_workers(queues: Storage) -> None:
    flow = linear(Say([], "a"), Wait("x"), Say([], "b"), storage=queues, keep=True)
    await flow.submit(flow_id="queued", partition="p", params={"n": 1})
    wait = await parked(flow.run(flow_id="parked"))
    answered = await parked(flow.run(flow_id="answered"))
    for flow_id in ("queued", "parked", "answered"):
        await flow.pause(flow_id)
    await flow.answer(answered.id, 3)
    assert await flow.retry() == 0
    assert await flow.retry(["queued"]) == 1
    assert await flow.retry(status="paused") == 2
    async with worker([flow]):
        assert await finished(flow, "answered") == {"said": ["a", "b"], "x": 3}
        for flow_id in ("queued", "parked"):
            await until(lambda: flow.status(flow_id), lambda run: run.status == "parked")
        assert (await flow.status("parked")).waits[0].id == wait.id
        for flow_id in ("queued", "parked"):
            await flow.answer(flow_id, 1)
            assert await finished(flow, flow_id) == {"said": ["a", "b"], "x": 1}
    assert await queues.queues(RUNS, limit=10) == []


async def test_retried_runs_of_a_partition_run_one_after_the_other(queues: Storage) -> None:
    running, most = set[str](), list[int]()
    broken = True

    class Alone(Node):
        async def exec(self, prep_res: Any) -> None:
            if broken:
                raise Boom
            running.add(step().flow_id)
            most.append(len(running))
            await asyncio.sleep(0.01)
            running.discard(step().flow_id)

    flow = linear(Alone, storage=queues)
    handles = [await flow.submit(partition="p") for _ in range(3)]
    async with worker([flow]):
        for handle in handles:
            await until(lambda handle=handle: is_failed(handle))  # type: ignore[misc]
        broken = False
        assert await flow.retry() == 3
        for handle in handles:
            assert await handle.result(20) == {}
    assert most == [1, 1, 1]


async def is_failed(handle: Any) -> bool:
    return bool((await handle.status()).status == "failed")


async def test_a_stuck_run_that_waits_waits_again_after_a_retry(queues: Storage) -> None:
    flow = linear(Wait("x", timeout=3600), name="f", storage=queues)
    await parked(flow.run(flow_id="r"))
    problems = [Boom()]

    def migrate(run: StoredRun) -> None:
        if problems:
            raise problems.pop()

    later = linear(Wait("x", timeout=3600), name="f", storage=queues, revision=2, migrate=migrate)
    with pytest.raises(FlowChanged):
        await later.resume("r")
    assert (await later.status("r")).status == "stuck"
    assert await later.retry(status="stuck") == 1
    async with worker([later]):
        await until(lambda: has_status(later, "parked"))
    assert await queues.due(RUNS) == []
    assert await later.answer("r", 1, run=True) == {"x": 1}


# Recoveries


async def take_over(storage: Storage, flow: NodeFlow) -> None:
    """Leave the record of a run as a killed runner leaves it, after one takeover."""
    gate = Gate()
    poison = linear(gate, Say([], "b"), name="f", storage=storage, max_recoveries=flow.max_recoveries)
    running = asyncio.create_task(poison.resume("r"))
    entered = asyncio.create_task(gate.entered.wait())
    await asyncio.wait([running, entered], return_when=asyncio.FIRST_COMPLETED)
    entered.cancel()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    if running.cancelled():
        return
    raise running.exception() or AssertionError


@pytest.mark.parametrize("next_runner", ["the same process", "another one that died"])
async def test_an_outage_of_the_storage_is_no_death_of_the_runner(constants: Constants, next_runner: str) -> None:
    constants(lease=0.2)

    class Cut(Node):
        left = 4

        async def exec(self, prep_res: Any) -> None:
            if self.left:
                Cut.left -= 1
                storage.before = range(1, 1_000_000)

    async with FaultyStorage(patience=0) as storage:
        flow = linear(Cut, name="f", storage=storage, max_recoveries=0, keep=60)
        with pytest.raises(StorageUnavailable):
            await flow.run(flow_id="r")
        for _ in range(3):
            storage.before = ()
            with pytest.raises(StorageUnavailable):
                await flow.resume("r")
        storage.before = ()
        assert (await flow.status("r")).recoveries == 0
        if next_runner != "the same process":
            # Another process has run it meanwhile, and has died.
            async with lease.hold(storage, "r", wait=5) as slot:
                await slot.commit(force=True, deadline=None)
            with pytest.raises(RunStuck, match="died 1 time at"):
                await flow.resume("r")
        else:
            await flow.resume("r")
        assert (await flow.status("r")).status == ("finished" if next_runner == "the same process" else "stuck")


@pytest.mark.parametrize("blocks", [1, 3])
async def test_a_node_that_blocks_the_loop_for_longer_than_the_lease_is_stuck_in_the_end(
    constants: Constants, blocks: int
) -> None:
    constants(lease=0.4, watch=0.5)

    class Blocks(Node):
        async def exec(self, prep_res: Any) -> None:
            for _ in range(blocks):
                time.sleep(0.6 / blocks)
                # Another runner gets it for a moment, once the lease has ended.
                await storage.perform(Claim(storage.address(RUNS, "r"), "another", 0.3))
                await asyncio.sleep(0)

    async with MemoryStorage() as storage:
        flow = linear(Blocks, name="f", storage=storage, max_recoveries=1)
        async with worker([flow]):
            handle = await flow.submit(flow_id="r")
            with pytest.raises(RunStuck, match="died 2 times at node 'Blocks'"):
                await handle.result(timeout=20)


def test_the_lag_of_a_loop_does_not_keep_the_loop() -> None:
    async def measured() -> weakref.ref[asyncio.AbstractEventLoop]:
        deaths.measure_lag().end()
        await asyncio.sleep(0)
        return weakref.ref(asyncio.get_running_loop())

    loops = [asyncio.run(measured()) for _ in range(3)]
    gc.collect()
    assert [loop() for loop in loops] == [None] * 3


async def test_a_lease_that_ends_in_an_outage_is_no_death_of_the_runner(constants: Constants) -> None:
    constants(lease=2.0)

    class Cut(Node):
        left = 2

        async def exec(self, prep_res: Any) -> None:
            if self.left:
                Cut.left -= 1
                storage.before = range(1, 1_000_000)
                await asyncio.sleep(2.4)
                storage.before = ()
                # Another runner has it for a moment.
                await storage.perform(Claim(storage.address(RUNS, "r"), "another", 0.2))

    async with FaultyStorage(patience=0) as storage:
        flow = linear(Cut, name="f", storage=storage, max_recoveries=0)
        with pytest.raises(LeaseLost):
            await flow.run(flow_id="r")
        with pytest.raises(LeaseLost):
            await flow.resume("r")
        assert await flow.resume("r") == {}


@pytest.mark.parametrize("most", [0, 2])
async def test_a_run_whose_runner_dies_too_often_is_stuck(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    async def killed(journal: Any, **options: Any) -> None:
        """A killed process writes nothing."""

    interrupt = ending._interrupt
    monkeypatch.setattr(ending, "_interrupt", killed)
    gate = Gate("gate")
    flow = linear(gate, Say([], "b"), name="f", storage=storage, max_recoveries=most)
    running = await begun(flow, gate)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    for _ in range(most):
        await take_over(storage, flow)
    times = counted(most + 1, "time")
    with pytest.raises(RunStuck, match=f"its runner died {times} at node 'gate'"):
        await take_over(storage, flow)
    run = await flow.status("r")
    assert (run.status, run.reason) == ("stuck", f"its runner died {times} at node 'gate'")
    assert await storage.due(RUNS, before=1e12) == []
    # A call of resume() tries it again, and deaths count from the start.
    monkeypatch.setattr(ending, "_interrupt", interrupt)
    gate.opened.set()
    assert await flow.resume("r") == {"said": ["b"]}


async def test_an_interrupted_call_and_a_completed_node_do_not_count_as_deaths(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate("gate")
    flow = linear(gate, Say([], "b"), name="f", storage=storage, max_recoveries=0)
    running = await begun(flow, gate)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    for _ in range(3):
        await take_over(storage, flow)
    gate.opened.set()
    assert await flow.resume("r") == {"said": ["b"]}


@pytest.mark.parametrize("limited", [True, False])
async def test_a_worker_runs_one_run_at_a_time_of_those_whose_runner_died_twice(
    queues: Storage, monkeypatch: pytest.MonkeyPatch, constants: Constants, limited: bool
) -> None:
    async def killed(journal: Any, **options: Any) -> None:
        """A killed process writes nothing."""

    interrupt = ending._interrupt
    monkeypatch.setattr(ending, "_interrupt", killed)
    constants(watch=0.1)
    if not limited:
        constants(suspects_deaths=100)
    entered: list[str] = []
    opened = asyncio.Event()

    class Door(Node):
        async def exec(self, prep_res: Any) -> None:
            entered.append(step().flow_id)
            await opened.wait()

    flow = linear(Door, Say([], "b"), storage=queues, keep=True)
    for flow_id in ("r1", "r2"):
        for _ in range(2):
            running = asyncio.create_task(flow.run(flow_id=flow_id, if_exists="resume"))
            await until(lambda: has_any(entered))
            entered.clear()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    monkeypatch.setattr(ending, "_interrupt", interrupt)
    async with worker([flow]):
        await until(lambda: has_any(entered))
        # The worker polls several times.
        await asyncio.sleep(1.2)
        assert len(entered) == (1 if limited else 2)
        opened.set()
        for flow_id in ("r1", "r2"):
            assert await finished(flow, flow_id) == {"said": ["b"]}


async def has_any(found: list[str]) -> bool:
    return bool(found)


def test_max_recoveries_is_checked() -> None:
    for wrong in (-1, True, 1.5, None):
        with pytest.raises(InvalidOption, match="max_recoveries"):
            NodeFlow(max_recoveries=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("status", ["paused", "failed"])
async def test_a_resumed_run_and_the_next_one_do_not_get_their_partition_at_once(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    flow = linear(Say([], "a", fails=[Boom("broken")] if status == "failed" else []), Wait("go"), storage=storage)
    first = await flow.submit({"said": []}, flow_id="first", partition="p")
    second = await flow.submit({"said": []}, flow_id="second", partition="p")
    if status == "failed":
        with pytest.raises(Boom):
            await flow.resume(first.id)
    else:
        await parked(flow.resume(first.id))
        await flow.pause(first.id)
    assert (await first.status()).status == status
    save, meanwhile = journal_module.Journal.save, []

    async def late(journal: journal_module.Journal, *args: Any, **options: Any) -> None:
        if not meanwhile:
            meanwhile.append(asyncio.create_task(flow.resume(second.id)))
            await asyncio.wait(meanwhile)
        await save(journal, *args, **options)

    monkeypatch.setattr(journal_module.Journal, "save", late)
    with pytest.raises(Parked):
        await flow.resume(first.id)
    assert isinstance(meanwhile[0].exception(), RunBusy)
    assert [(await handle.status()).status for handle in (first, second)] == ["parked", "queued"]


async def test_a_paused_run_that_waits_does_not_take_its_partition_from_another_run(storage: Storage) -> None:
    flow = linear(Wait("go"), storage=storage)
    first, second = [await flow.submit(flow_id=flow_id, partition="p") for flow_id in ("first", "second")]
    await parked(flow.resume(first.id))
    await flow.pause(first.id)
    await parked(flow.resume(second.id))
    with pytest.raises(RunBusy):
        await flow.resume(first.id)
    assert (await first.status()).status == "paused"
    await flow.resume(second.id, 2)
    await parked(flow.resume(first.id))
    assert await flow.resume(first.id, 1) == {"go": 1}


@pytest.mark.parametrize("partition", [None, "p"])
async def test_a_retried_run_that_waits_again_leaves_its_queue(queues: Storage, partition: str | None) -> None:
    asked = linear(Wait("go"), name="asked", storage=queues, max_recoveries=0)
    handle = await asked.submit(partition=partition)
    await parked(asked.resume(handle.id))
    other = NodeFlow(start=Wait("other"), name="asked", storage=queues)
    with pytest.raises(FlowChanged):
        await other.resume(handle.id)
    assert await asked.retry(status="stuck") == 1
    async with worker([asked]):
        await until(lambda: has_status_of(handle, "parked"))
        assert await queues.queues(RUNS) == []
        await handle.answer("yes")
        await handle.result(timeout=20)


async def has_status_of(handle: RunHandle, status: str) -> bool:
    return (await handle.status()).status == status
