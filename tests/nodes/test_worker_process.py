"""A worker as a program of its own, which is stopped by a signal."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from stepwell import open_storage
from stepwell.nodes import Node, RunHandle, linear, worker

PROGRAM = """
import asyncio, logging, sys

from stepwell.nodes import Node, linear, worker


class Long(Node):
    async def exec(self, prep_res):
        print("started", flush=True)
        await asyncio.sleep(600)


logging.basicConfig(level=logging.INFO)
asyncio.run(worker([linear(Long(name="long"), name="jobs", storage=sys.argv[1])], drain=0).run())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_a_worker_and_interrupts_its_runs(tmp_path: Path, number: signal.Signals) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with open_storage(url) as storage:
        flow = linear(Node(name="long", inline=True), name="jobs", storage=storage)
        handle: RunHandle = await flow.submit()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM, url), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        async with asyncio.timeout(60):
            assert await process.stdout.readline() == b"started\n"
            process.send_signal(number)
            _, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        assert b"started a worker of 'jobs'" in errors
        assert b"Traceback" not in errors
        assert (await handle.status()).interrupted
        async with worker([flow]):
            assert await handle.result(timeout=60) == {}
