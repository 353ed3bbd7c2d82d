"""Three workers, many timers due at once, one worker killed: each timer fires exactly once and on time."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from stepwell.fsm import FSM
from tests.backends import Backend
from tests.reliability.timer_worker import Timed

TIMERS = 1000
LARGE = os.environ.get("STEPWELL_DOSE") == "large"
#: A busy machine gets more time.
LATEST = 2.0 if LARGE else 15.0


async def test_each_timer_fires_once_although_a_worker_is_killed(shared_backend: Backend) -> None:
    url = shared_backend.place()
    storage = shared_backend.storage(url)
    fsm = FSM("bot", storage=storage, flows=[Timed], run_timers=False)
    async with storage:
        workers = [
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.reliability.timer_worker", url, stdout=asyncio.subprocess.PIPE
            )
            for _ in range(3)
        ]
        try:
            for worker in workers:
                assert worker.stdout is not None
                assert await worker.stdout.readline() == b"ready\n"

            async def begin(key: int) -> None:
                async with fsm.conversation(key=key) as ctx:
                    ctx.start_flow(Timed)

            await asyncio.gather(*map(begin, range(TIMERS)))
            started = {entry.key: entry.deadline async for entry in storage.scan("bot")}
            last = max(deadline for deadline in started.values() if deadline is not None)
            while len(fired := [entry async for entry in storage.scan("bot", state="late")]) == 0:
                await asyncio.sleep(0.02)
            workers[0].send_signal(signal.SIGKILL)
            async with asyncio.timeout(60):
                while len(fired := [entry async for entry in storage.scan("bot", state="late")]) < TIMERS:
                    await asyncio.sleep(0.1)
        finally:
            for worker in workers:
                if worker.returncode is None:
                    worker.kill()
                await worker.wait()
        lateness = max(entry.written_at - (started[entry.key] or last) for entry in fired)
        print(f"{TIMERS} timers on {shared_backend.name}: the latest {lateness:.2f} s after its time")
        assert {entry.state.data["fired"] for entry in fired} == {1}
        assert min(entry.written_at - (started[entry.key] or 0) for entry in fired) >= 0
        assert lateness < LATEST
