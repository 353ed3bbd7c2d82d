"""Workers in other processes hear of runs without polling."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from stepwell.nodes import Node, NodeFlow, Wait, linear
from stepwell.storage import Storage
from tests.backends.base import Backend
from tests.backends.postgres import Postgres
from tests.backends.redis import Redis, RedisCluster
from tests.until import until

WORKER = """
import asyncio, sys
from stepwell import open_storage
from stepwell.nodes import worker
from stepwell.dispatch import polling
from tests.nodes.test_notices import flow_in

# Only a notice wakes the worker within the time of the test.
polling.TICK = 600.0


async def main():
    async with open_storage(sys.argv[1]) as storage, worker([flow_in(storage)]):
        while not storage._channel._connected:
            await asyncio.sleep(0.01)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


asyncio.run(main())
"""


class Increment(Node):
    def post(self, shared: dict[str, int], prep_res: None, exec_res: None) -> None:
        shared["n"] += 1


def flow_in(storage: Storage) -> NodeFlow:
    return linear(Increment(name="first"), Wait("ok"), Increment(name="last"), name="orders", storage=storage)


@pytest.mark.parametrize("kind", [Postgres, Redis, RedisCluster], ids=lambda kind: kind.name)
async def test_a_worker_in_another_process_takes_submitted_and_answered_runs_at_once(
    kind: type[Backend], tmp_path: Path
) -> None:
    backend = kind(tmp_path)
    url = backend.place()
    storage = backend.storage(url)
    flow = flow_in(storage)
    await storage.open()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WORKER, url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        async with asyncio.timeout(30):
            assert await process.stdout.readline() == b"ready\n"
            handles = [await flow.submit({"n": n}, partition=partition) for n, partition in enumerate([None, "p", "p"])]
            for n, handle in enumerate(handles):
                await until(handle.status, lambda run: run.status == "parked")
                await handle.answer(True)
                # The end of the first run of the partition wakes the worker for the second one.
                assert (await handle.result())["n"] == n + 2
    finally:
        await backend.close()
        # The worker ends when its input does.
        process.stdin.close()
        async with asyncio.timeout(30):
            assert await process.wait() == 0
