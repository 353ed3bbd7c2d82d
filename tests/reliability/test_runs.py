"""A killed run continues after its last completed node, and only one runner commits."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import pytest

from stepwell import MemoryStorage, Storage
from stepwell.nodes import NodeFlow, worker
from stepwell.nodes.batch.durable import UNSAVED
from stepwell.storage import Apply
from stepwell.testing import Clock
from tests.backends import Backend
from tests.constants import Constants
from tests.reliability.dose import LARGE, dose, seeded
from tests.reliability.run_roles import ITEMS, LEASE, START, branchy_flow, long_flow, run_to_the_end
from tests.reliability.workers import Worker, Workers
from tests.until import until

MakeFlow = Callable[[Storage, Callable[..., None]], NodeFlow]

#: The number of concurrent processes.
AT_ONCE = 6

CONCURRENCY = 4


def without_id(value: Any, flow_id: str) -> Any:
    """Return a final state without the run's id, to compare it with that of another run."""
    if isinstance(value, dict):
        return {key: without_id(inside, flow_id) for key, inside in value.items()}
    if isinstance(value, list):
        return [without_id(inside, flow_id) for inside in value]
    return value.replace(flow_id, "ID") if isinstance(value, str) else value


async def undisturbed(make_flow: MakeFlow = long_flow) -> dict[str, Any]:
    flow = make_flow(MemoryStorage(), lambda *report: None)
    return without_id(await run_to_the_end(flow, "undisturbed"), "undisturbed")  # type: ignore[no-any-return]


async def check_resumed(
    storage: Storage,
    flow_id: str,
    before: list[list[Any]],
    wanted: dict[str, Any],
    make_flow: MakeFlow = long_flow,
) -> None:
    """Resume a run whose runner is dead. It must end like an undisturbed run."""
    reports: list[list[Any]] = []
    flow = make_flow(storage, lambda *report: reports.append(list(report)))
    known = [run async for run in flow.runs() if run.flow_id == flow_id]
    completed = {path for run in known for path in run.path}
    saved = {path.rpartition("/")[2]: progress.done for run in known for path, progress in run.progress.items()}
    final = await run_to_the_end(flow, flow_id)
    assert without_id(final, flow_id) == wanted
    again = [word[1] for word in reports if word[0] == "ran"]
    assert not completed & set(again), "a completed node ran again"
    if "squares" in saved:
        assert "squares.prep" not in again
        items = [word for word in reports if word[0] == "item"]
        assert len(items) == ITEMS - saved["squares"]
        done = len([word for word in before if word[0] == "item"])
        assert done - saved["squares"] <= UNSAVED + 2 * CONCURRENCY
    if known and known[0].status == "finished":
        assert not again


async def test_a_run_killed_at_any_checkpoint_ends_like_an_undisturbed_one(
    shared_backend: Backend, workers: Workers
) -> None:
    if not shared_backend.durable:
        pytest.skip("this backend does not survive a kill")
    choose = seeded()
    wanted = await undisturbed()
    url = shared_backend.place()
    storage = shared_backend.storage(url, sweep_every=None)
    await storage.open()
    whole = workers.start("run_and_die", url, flow_id="whole", at=-1)
    await whole.wait_ended()
    [(_, commits, final)] = whole.reported("final")
    assert without_id(final, "whole") == wanted
    assert commits > 18
    # The number of commits of a batch depends on time, so that the last kills may come too late.
    every = 1 if LARGE else 2 if shared_backend.name == "sqlite" else 4
    first = choose.randint(1, every)
    kills: list[tuple[int, float | None]] = [(at, None) for at in range(first, commits + 3, every)]
    kills += [(choose.randint(1, commits), choose.uniform(0, 0.004)) for _ in range(dose("RUNS", 4, 500))]
    limit = asyncio.Semaphore(AT_ONCE)
    died = 0

    async def kill(number: int, at: int, during: float | None) -> None:
        nonlocal died
        flow_id = f"run-{number}"
        async with limit:
            worker = workers.start("run_and_die", url, flow_id=flow_id, at=at, during=during)
            await worker.wait_ended()
        died += not worker.reported("final")
        # All runs wait concurrently until the leases of the killed runners expire.
        await check_resumed(storage, flow_id, worker.reported(), wanted)

    async with asyncio.TaskGroup() as group:
        for number, (at, during) in enumerate(kills):
            group.create_task(kill(number, at, during))
    print(f"{shared_backend.name}: {died} of {len(kills)} runs killed, {commits} checkpoints")
    assert died >= commits // every - 6


@pytest.mark.parametrize("make_flow", [long_flow, branchy_flow])
async def test_a_run_cut_off_at_any_operation_ends_like_an_undisturbed_one(make_flow: MakeFlow) -> None:
    """The same in one process, on memory: from some operation on, every operation fails."""

    class Killed(BaseException):
        pass

    wanted = await undisturbed(make_flow)
    clock = Clock()
    storage = MemoryStorage(clock=clock)
    perform = storage.perform
    for at in range(200):
        commits = 0

        async def dying(operation: Any, at: int = at) -> Any:
            nonlocal commits
            commits += isinstance(operation, Apply)
            if commits > at:
                raise Killed
            return await perform(operation)

        storage.perform = dying  # type: ignore[method-assign]
        before: list[list[Any]] = []

        def report(*line: Any, log: list[list[Any]] = before, at: int = at) -> None:
            # A save in the background may fail first. A dead process would run no further items.
            if commits <= at:
                log.append(list(line))

        flow_id = f"run-{at}"
        try:
            await run_to_the_end(make_flow(storage, report), flow_id)
        except (Killed, BaseExceptionGroup):
            storage.perform = perform  # type: ignore[method-assign]
            clock.advance(60)
            await check_resumed(storage, flow_id, before, wanted, make_flow)
        else:
            break
    assert at > 18


async def test_workers_resume_the_runs_of_killed_processes(
    shared_backend: Backend, workers: Workers, constants: Constants
) -> None:
    constants(lease=LEASE)
    if not shared_backend.durable:
        pytest.skip("this backend does not survive a kill")
    wanted = await undisturbed()
    url = shared_backend.place()
    killed = [workers.start("run_and_die", url, flow_id=f"run-{at}", at=at) for at in (1, 3, 8, 12)]
    for process in killed:
        await process.wait_ended()
    reports: list[list[Any]] = []
    storage, other = shared_backend.storage(url), shared_backend.storage(url)
    flow = long_flow(storage, lambda *report: reports.append(list(report)))
    async with worker([flow], storage=storage), worker([flow], storage=other):
        await until(lambda: flow.runs("parked"), lambda runs: len(runs) >= len(killed))
    ran = [word[1] for word in reports if word[0] == "ran"]
    assert ran.count("branches/0/left/e") == ran.count("d") == len(killed)
    async for run in flow.runs():
        assert without_id(await flow.resume(run.waits[0].id, "yes"), run.flow_id) == wanted


@pytest.mark.parametrize("stopped", [True, False], ids=["one suspended", "all running"])
async def test_of_several_runners_one_finishes_and_the_others_stop_with_a_clear_error(
    shared_backend: Backend, workers: Workers, stopped: bool
) -> None:
    choose = seeded()
    wanted = await undisturbed()
    limit = asyncio.Semaphore(5)

    async def contend(number: int) -> tuple[int, int]:
        async with limit:
            flow_id = f"run-{number}"
            # A separate store for each run: a process that is suspended during a commit to a file blocks all writers.
            url = shared_backend.place()
            first = workers.start("run_beside_others", url, flow_id=flow_id, seconds=0.05)
            await first.wait_for("committed")
            others = [workers.start("run_beside_others", url, flow_id=flow_id, seconds=0.05) for _ in range(2)]
            if stopped:
                # The first of these runs has only just begun, so its runner loses it.
                await asyncio.sleep(choose.uniform(0, 0.5) if number else 0)
                if first.alive():
                    first.signal(signal.SIGSTOP)
                await asyncio.wait([asyncio.create_task(other.wait_ended()) for other in others], timeout=LEASE + 0.5)
                if first.alive():
                    first.signal(signal.SIGCONT)
            runners = [first, *others]
            for runner in runners:
                await runner.wait_ended()
            return check_runners(runners, flow_id, wanted)

    outcomes = await asyncio.gather(*(contend(number) for number in range(dose("RUNNERS", 3 if stopped else 1, 500))))
    lost = sum(lost for lost, _ in outcomes)
    print(f"{shared_backend.name}: {len(outcomes)} runs of three runners each, {lost} runners lost theirs")
    assert lost or not stopped


def check_runners(runners: list[Worker], flow_id: str, wanted: dict[str, Any]) -> tuple[int, int]:
    """Check that each version has one committer, and that each runner either finished or reported an error."""
    commits = [line[1] for runner in runners for line in runner.reported("committed")]
    assert len(set(commits)) == len(commits), "two runners have committed the same version"
    finals = [line[1] for runner in runners for line in runner.reported("final")]
    assert finals, "no runner has finished"
    assert all(without_id(final, flow_id) == wanted for final in finals)
    lost = [line for runner in runners for line in runner.reported("lost")]
    for _, kind, notes in lost:
        assert kind in ("LeaseLost", "RunBusy")
        assert kind != "LeaseLost" or any("was lost" in note for note in notes)
    assert len(finals) + len(lost) == len(runners)
    return len(lost), len(finals)


def test_the_start_is_what_a_run_begins_with() -> None:
    assert START == {"n": 7, "ran": []}
