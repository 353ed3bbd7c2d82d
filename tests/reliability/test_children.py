"""Runs with children that wait, and with children of children, while their workers are killed."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from stepwell import Storage
from stepwell.errors import RunFinished
from stepwell.nodes import NodeFlow, RunHandle
from stepwell.nodes.queue import children
from stepwell.record import RUNS
from tests.reliability.child_roles import families, undisturbed
from tests.reliability.dose import LARGE, dose, seeded
from tests.reliability.workers import Worker, Workers
from tests.until import until


async def answer_children(asking: NodeFlow, answered: dict[str, str]) -> None:
    """Answer each child that waits, until this is cancelled."""
    while True:
        async for run in asking.runs("parked"):
            if run.waits and run.flow_id not in answered:
                answered[run.flow_id] = run.waits[0].id
                with suppress(RunFinished):
                    await asking.answer(run.waits[0].id, "go")
        await asyncio.sleep(0.05)


async def test_every_parent_ends_as_an_undisturbed_one_while_workers_are_killed(
    storage: Storage, url: str, workers: Workers
) -> None:
    choose = seeded()
    top, _, asking, _ = families(storage)
    count = dose("FAMILIES", 3, 200)
    handles = [await top.submit({"n": number}, flow_id=f"r{number}") for number in range(count)]
    running: list[Worker] = [workers.start("child_worker", url, probability=0.1) for _ in range(2)]
    ended = asyncio.Event()
    deaths = 0

    async def kill(kills: int) -> None:
        """Kill workers, and replace those that have died of themselves too."""
        nonlocal deaths
        next_kill = choose.uniform(0.1, 0.5)
        while not ended.is_set():
            await asyncio.sleep(0.05)
            next_kill -= 0.05
            if next_kill <= 0 and kills:
                kills, next_kill = kills - 1, choose.uniform(0.1, 0.5)
                with suppress(ProcessLookupError):
                    await running[choose.randrange(2)].kill()
            for at, process in enumerate(running):
                if not process.alive():
                    deaths += 1
                    running[at] = workers.start("child_worker", url, probability=0.1)

    answered: dict[str, str] = {}
    async with asyncio.timeout(60 if not LARGE else 3600), asyncio.TaskGroup() as group:
        answering = group.create_task(answer_children(asking, answered))
        group.create_task(kill(dose("KILLS", 3, 200)))
        for number, handle in enumerate(handles):
            assert await handle.result() == undisturbed(number)
        ended.set()
        answering.cancel()
    print(f"{deaths} deaths")
    assert len(answered) == 2 * count
    for handle in handles:
        # Two at each side, and those of the map: none was started twice.
        found = [entry.key async for entry in storage.scan(RUNS, tag=children.tag_of(handle.id))]
        assert len(found) == 8


async def test_a_cancel_reaches_all_children_while_workers_are_killed(
    storage: Storage, url: str, workers: Workers
) -> None:
    choose = seeded()
    top, *others = families(storage)
    count = dose("CANCELLED", 4, 200)
    handles = [await top.submit({"n": number}, flow_id=f"r{number}") for number in range(count)]
    running = [workers.start("child_worker", url) for _ in range(2)]

    async def cancel(handle: RunHandle) -> None:
        await asyncio.sleep(choose.uniform(0, 1))
        await handle.cancel("enough")

    async def open_runs() -> list[tuple[str, str]]:
        return [(run.flow_id, run.status) for flow in (top, *others) async for run in flow.runs()]

    async with asyncio.timeout(60 if not LARGE else 3600):
        async with asyncio.TaskGroup() as group:
            for handle in handles:
                group.create_task(cancel(handle))
            for _ in range(dose("KILLS", 2, 50)):
                await asyncio.sleep(choose.uniform(0.1, 0.5))
                at = choose.randrange(2)
                await running[at].kill()
                running[at] = workers.start("child_worker", url)
        for handle in handles:
            assert (await handle.status()).status == "cancelled"
        # Children that were busy end with the next renewal, or when a worker takes them up.
        await until(open_runs, lambda it: not it)
