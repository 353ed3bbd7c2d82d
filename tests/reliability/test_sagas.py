"""A saga whose process is killed at any commit, on its way forward or back, ends like an undisturbed one."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

from stepwell import Storage
from stepwell.errors import UsageError
from stepwell.nodes import worker
from tests.backends import Backend
from tests.reliability.dose import LARGE, seeded
from tests.reliability.saga_roles import Ends, run_saga, saga
from tests.reliability.workers import Worker, Workers
from tests.until import until

BOOKED = [["booked", name] for name in "abcde"]
UNDONE = [["undone", name] for name in "edcba"]
#: The number of concurrent processes.
AT_ONCE = 6


def _steps_of(process: Worker) -> list[list[str]]:
    return [line[:2] for line in process.reported() if line[0] in ("booked", "undone")]


@pytest.mark.parametrize("ends", ["finished", "failed", "cancelled"])
async def test_a_saga_killed_at_any_commit_ends_like_an_undisturbed_one(
    ends: Ends, url: str, storage: Storage, workers: Workers, shared_backend: Backend
) -> None:
    wanted = BOOKED if ends == "finished" else [*BOOKED, *UNDONE]
    whole = workers.start("saga_and_die", url, flow_id="whole", ends=ends, at=-1)
    await whole.wait_ended()
    [(_, commits)] = whole.reported("ended")
    assert _steps_of(whole) == wanted
    every = 1 if LARGE else 3
    limit = asyncio.Semaphore(AT_ONCE)
    # The worker of one run may take up another one.
    steps: defaultdict[str, list[list[str]]] = defaultdict(list)
    flow = saga(storage, lambda what, node, flow_id: steps[flow_id].append([what, node]), ends)

    async def kill(at: int) -> None:
        flow_id = f"saga-{at}"
        async with limit:
            process = workers.start("saga_and_die", url, flow_id=flow_id, ends=ends, at=at)
            await process.wait_ended()
        assert not process.reported("ended")
        before = _steps_of(process)
        if at % 2 or ends == "cancelled":
            # A run that is undone or has ended is not resumed.
            try:
                await run_saga(flow, flow_id, ends)
            except UsageError:
                assert ends == "failed"
        else:
            async with worker([flow], storage=storage):
                await until(lambda: flow.status(flow_id), lambda run: run.status == ends)
        run = await flow.status(flow_id)
        assert (run.status, [each.node for each in run.undone]) == (ends, [] if ends == "finished" else list("edcba"))
        lines = before + steps[flow_id]
        # The step that ran when its process was killed runs again, and no other.
        assert [line for number, line in enumerate(lines) if line not in lines[:number]] == wanted
        assert len(lines) <= len(wanted) + 1

    async with asyncio.TaskGroup() as group:
        for at in range(seeded().randint(1, every), commits + 1, every):
            group.create_task(kill(at))
    print(f"{shared_backend.name}: {commits // every} of {commits} commits, {ends}")
