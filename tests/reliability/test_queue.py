"""Queues with processes that are killed and suspended: every run once, partitions in order, nothing left behind."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import defaultdict
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest

from stepwell import Storage
from stepwell.nodes import NodeFlow
from stepwell.nodes.run.monitor import Run
from stepwell.record import RUNS
from tests.backends import Backend
from tests.reliability.dose import dose, seeded
from tests.reliability.queue_roles import jobs, short_jobs
from tests.reliability.workers import Worker, Workers
from tests.until import until

#: The number of worker processes.
AT_ONCE = 4
FINAL = {
    "jobs": {"n": 2, "ran": ["first", "last"]},
    "short": {"n": 1, "ran": ["only"]},
}


def submissions(choose: random.Random, count: int) -> list[list[Any]]:
    """Return runs of two flows: of partitions, delayed ones, and plain ones."""
    chosen: list[list[Any]] = []
    for number in range(count):
        flow = choose.choice(["jobs", "short", "short"])
        partition = choose.choice([None, "a", "b", "c", "d"])
        after = choose.choice([None, None, None, choose.uniform(0, 1)]) if partition is None else None
        chosen.append(
            [flow, f"{flow}-{partition}-{number:06d}", partition, after, choose.randint(0, 2) * (not partition)]
        )
    return chosen


async def submit_with_kills(
    workers: Workers, url: str, wanted: list[list[Any]], choose: random.Random, kills: int
) -> None:
    """Submit all runs in order, by processes that are killed and continued by others."""
    acknowledged: set[str] = set()
    while len(acknowledged) < len(wanted):
        process = workers.start("submit_all", url, submissions=[each for each in wanted if each[1] not in acknowledged])
        if kills > 0:
            kills -= 1
            await process.wait_for("submitted")
            await asyncio.sleep(choose.uniform(0, 0.1))
            with suppress(ProcessLookupError):
                process.signal(signal.SIGKILL)
        await process.wait_ended()
        acknowledged |= {line[1] for line in process.reported("submitted")}


async def disturb(workers: Workers, url: str, choose: random.Random, kills: int, seen: list[Worker]) -> None:
    """Keep a number of workers running, and kill or suspend one of them at random times."""

    def start() -> Worker:
        process = workers.start("work_off", url, concurrency=choose.choice([1, 4, 16]))
        seen.append(process)
        return process

    running = [start() for _ in range(AT_ONCE)]
    for process in running:
        await process.wait_for("works")
    for _ in range(kills):
        await asyncio.sleep(choose.uniform(0.05, 0.3))
        at = choose.randrange(AT_ONCE)
        if choose.random() < 0.25:
            # Longer than its leases.
            running[at].signal(signal.SIGSTOP)
            await asyncio.sleep(2.0)
            running[at].signal(signal.SIGCONT)
        else:
            running[at].signal(signal.SIGKILL)
            running[at] = start()


async def all_runs(flows: list[NodeFlow]) -> dict[str, Run]:
    # In this order: a run that finishes between the two lists is in the second one.
    active = {run.flow_id: run for flow in flows for run in [run async for run in flow.runs()]}
    return active | {run.flow_id: run for flow in flows for run in [run async for run in flow.runs("finished")]}


async def test_every_submitted_run_ends_once_and_partitions_stay_in_order(
    shared_backend: Backend, workers: Workers
) -> None:
    if not shared_backend.durable:
        pytest.skip("this backend does not survive a kill")
    choose = seeded()
    url = shared_backend.place()
    storage = shared_backend.storage(url, sweep_every=None)
    await storage.open()
    flows = [jobs(storage, lambda *line: None), short_jobs(storage, lambda *line: None)]
    wanted = submissions(choose, dose("QUEUE_RUNS", 40, 1000))
    kills = dose("QUEUE_KILLS", 4, 100)
    seen: list[Worker] = []
    disturbing = asyncio.create_task(disturb(workers, url, choose, kills, seen))
    await submit_with_kills(workers, url, wanted, choose, dose("SUBMIT_KILLS", 2, 20))
    await disturbing
    known = await until(
        lambda: all_runs(flows),
        lambda known: all(run.status == "finished" for run in known.values()),
        patience=60 + len(wanted) / 5,
    )
    assert set(known) == {each[1] for each in wanted}
    await check_finals(storage, known)
    await check_partitions(storage, known)
    again = sum(len(process.reported("ran")) for process in seen) - sum(FINAL[run.flow]["n"] for run in known.values())
    print(f"{shared_backend.name}: {len(known)} runs, {kills} kills and stops, {again} nodes ran again")
    failures = [line for process in seen for line in process.reported("failed")]
    assert not failures


async def check_finals(storage: Storage, known: dict[str, Run]) -> None:
    for flow_id, run in known.items():
        final = await storage.get_data(RUNS, flow_id)
        assert final == FINAL[run.flow], f"{flow_id} ended as {final}"


async def check_partitions(storage: Storage, known: dict[str, Run]) -> None:
    """Check that each run of a partition ended before the next one started, on the storage's clock."""
    by_partition: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for flow_id, run in sorted(known.items(), key=lambda item: item[0].rpartition("-")[2]):
        partition = flow_id.split("-")[1]
        if partition != "None":
            by_partition[run.flow, partition].append(run)
    for runs in by_partition.values():
        for run, following in pairwise(runs):
            assert run.updated_at <= following.started_at, f"{following.flow_id} did not wait for its turn"
    assert await storage.queues(RUNS, limit=10) == []
