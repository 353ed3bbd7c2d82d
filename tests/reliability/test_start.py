"""Many processes may open an empty store at once."""

from __future__ import annotations

from tests.backends import Backend
from tests.reliability.dose import dose
from tests.reliability.roles import BOT
from tests.reliability.workers import Workers


async def test_ten_processes_that_start_at_once_on_an_empty_store_all_work(
    shared_backend: Backend, workers: Workers
) -> None:
    for _ in range(dose("STARTS", 1, 20)):
        url = shared_backend.place()
        started = [workers.start("merge", url, name=str(n), tasks=1, each=2, keys=1) for n in range(10)]
        for worker in started:
            await worker.wait_for("done")
        assert len(await shared_backend.storage(url).get_data(BOT, 0) or {}) == 20
