"""Three workers, many timers due at once, one worker killed: each timer fires exactly once and on time."""

from __future__ import annotations

import asyncio

from stepwell.fsm import FSM
from tests.backends import Backend
from tests.reliability.dose import LARGE, dose
from tests.reliability.timer_roles import Timed
from tests.reliability.workers import Workers
from tests.until import until

TIMERS = dose("TIMERS", 300, 1000)
#: A busy machine gets more time.
LATEST = 2.0 if LARGE else 15.0


async def test_each_timer_fires_once_although_a_worker_is_killed(shared_backend: Backend, workers: Workers) -> None:
    url = shared_backend.place()
    storage = shared_backend.storage(url)
    fsm = FSM("bot", storage=storage, flows=[Timed], run_timers=False)
    async with storage:
        started = [workers.start("run_timers", url) for _ in range(3)]
        for worker in started:
            await worker.wait_for("ready")

        async def begin(key: int) -> None:
            async with fsm.conversation(key=key) as ctx:
                ctx.start_flow(Timed)

        await asyncio.gather(*map(begin, range(TIMERS)))
        deadlines = {entry.key: entry.deadline async for entry in storage.scan("bot")}
        last = max(deadline for deadline in deadlines.values() if deadline is not None)
        await until(lambda: storage.scan("bot", state="late"))
        await started[0].kill()
        fired = await until(lambda: storage.scan("bot", state="late"), lambda fired: len(fired) >= TIMERS)
        lateness = max(entry.written_at - (deadlines[entry.key] or last) for entry in fired)
        print(f"{TIMERS} timers on {shared_backend.name}: the latest {lateness:.2f} s after its time")
        assert {entry.state.data["fired"] for entry in fired} == {1}
        assert min(entry.written_at - (deadlines[entry.key] or 0) for entry in fired) >= 0
        assert lateness < LATEST
