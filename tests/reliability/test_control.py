"""Runs that are cancelled and answered while their processes are killed, and a run that kills its process."""

from __future__ import annotations

import asyncio
import random
from time import monotonic
from typing import Any

import pytest

from stepwell import Storage
from stepwell.errors import RunCancelled
from stepwell.nodes import NodeFlow, RunHandle
from tests.reliability.control_roles import asking, endless, healthy, poison
from tests.reliability.dose import LARGE, dose, seeded
from tests.reliability.run_roles import LEASE
from tests.reliability.workers import Worker, Workers
from tests.until import until


def quiet(*line: Any) -> None:
    """Report nothing."""


async def test_a_run_that_kills_its_process_becomes_stuck_and_harms_no_other_run(
    storage: Storage, url: str, workers: Workers
) -> None:
    others = [await healthy(storage, quiet).submit({}, flow_id=f"healthy-{number}") for number in range(4)]
    killer = await poison(storage).submit({}, flow_id="killer")
    processes: list[Worker] = []
    async with asyncio.timeout(60):
        while (await killer.status()).status != "stuck":
            if not processes or not processes[-1].alive():
                processes.append(workers.start("control_worker", url))
            await asyncio.sleep(0.02)
        assert (await killer.status()).reason == "its runner died 3 times at node 'Kill'"
        assert len(processes) == 4
        for other in others:
            assert await other.result() == {}
    assert processes[-1].alive()


async def test_a_run_in_another_process_is_cancelled_by_the_next_renewal(
    storage: Storage, url: str, workers: Workers
) -> None:
    process = workers.start("control_worker", url)
    handle = await endless(storage, quiet).submit({}, flow_id="endless")
    await process.wait_for("entered")
    began = monotonic()
    async with asyncio.timeout(30):
        await handle.cancel("enough")
    print(f"cancelled after {monotonic() - began:.2f} s")
    # The node ends before the run is committed as cancelled.
    assert process.reported("interrupted") == [["interrupted", "endless"]]
    with pytest.raises(RunCancelled, match="enough"):
        await handle.result()
    assert process.alive()


async def test_a_run_whose_process_is_killed_while_it_is_cancelled_stays_cancelled(
    storage: Storage, url: str, workers: Workers
) -> None:
    process, other = workers.start("control_worker", url), workers.start("control_worker", url)
    handle = await endless(storage, quiet).submit({}, flow_id="endless")
    async with asyncio.timeout(30):
        runners = await until(lambda: [each for each in (process, other) if each.reported("entered")])
        cancelling = asyncio.create_task(handle.cancel("enough"))
        await runners[0].kill()
        await cancelling
    assert (await handle.status()).status == "cancelled"
    await asyncio.sleep(LEASE)
    assert sum(len(each.reported("entered")) for each in (process, other)) == 1


async def answer_all(flow: NodeFlow, handle: RunHandle, choose: random.Random) -> None:
    """Answer each wait of a run when it opens, some of them twice."""
    answered: set[str] = set()
    while (run := await handle.status()).status != "finished":
        for wait in run.waits:
            if wait.id not in answered:
                answered.add(wait.id)
                await flow.answer(wait.id, f"{handle.id} {wait.node}")
                if choose.random() < 0.5:
                    await flow.answer(wait.id, "a second answer")
        await asyncio.sleep(choose.uniform(0, 0.05))
    assert len(answered) == 3


async def test_every_answer_is_used_once_while_workers_are_killed(storage: Storage, url: str, workers: Workers) -> None:
    choose = seeded()
    flow = asking(storage, quiet)
    handles = [await flow.submit({}, flow_id=f"r{number}") for number in range(dose("ANSWERED", 8, 1000))]
    running = [workers.start("control_worker", url) for _ in range(2)]

    async def kill(kills: int) -> None:
        for _ in range(kills):
            await asyncio.sleep(choose.uniform(0.05, 0.4))
            at = choose.randrange(len(running))
            await running[at].kill()
            running[at] = workers.start("control_worker", url)

    async with asyncio.timeout(60 if not LARGE else 3600), asyncio.TaskGroup() as group:
        group.create_task(kill(dose("KILLS", 4, 200)))
        for handle in handles:
            group.create_task(answer_all(flow, handle, choose))
    for handle in handles:
        assert await handle.result() == {
            "left": [f"{handle.id} both/0/left"],
            "right": [f"{handle.id} both/1/flow/right"],
            "last": [f"{handle.id} last"],
        }
