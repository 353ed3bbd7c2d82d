"""No acknowledged merge is lost."""

from __future__ import annotations

from tests.backends import Backend
from tests.reliability.dose import dose
from tests.reliability.roles import BOT
from tests.reliability.workers import Workers

PROCESSES, TASKS = 4, 50


async def test_processes_that_merge_into_one_key_lose_nothing(shared_backend: Backend, workers: Workers) -> None:
    url = shared_backend.place()
    each = dose("MERGES", 400, 20_000) // (PROCESSES * TASKS)
    keys = max(1, each // 5)
    started = [
        workers.start("merge", url, name=str(number), tasks=TASKS, each=each, keys=keys) for number in range(PROCESSES)
    ]
    for worker in started:
        await worker.wait_for("done", timeout=120)
    merged = [tuple(line[1:]) for worker in started for line in worker.reported("merged")]
    storage = shared_backend.storage(url)
    found = []
    for key in range(keys):
        found += [(key, field) for field in await storage.get_data(BOT, key) or {}]
    assert len(merged) == PROCESSES * TASKS * each
    assert sorted(found) == sorted(merged)
