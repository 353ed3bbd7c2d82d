"""A promoted standby of PostgreSQL has every acknowledged write, and users wait little longer than for the server."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from stepwell import open_storage
from tests.reliability.dose import dose, seeded
from tests.reliability.failovers import LONGER, check_totals, longest_pause, pause_of, progress
from tests.reliability.linear import Op, check
from tests.reliability.workers import Workers
from tests.servers.standby import StandbyPair

#: Users of each of the two workers.
USERS = 25
#: Errors of a plain client during a promotion.
FAILURES = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


@pytest.fixture
def pair() -> Iterator[StandbyPair]:
    pair = StandbyPair()
    yield pair
    pair.stop()


class Prober:
    """A plain client that writes again and again, and notes the times of its successes."""

    def __init__(self, url: str) -> None:
        self._url = f"{url.partition('?')[0]}?target_session_attrs=read-write"
        self.times: list[float] = []

    async def run(self) -> None:
        connection = None
        try:
            while True:
                try:
                    if connection is None or connection.is_closed():
                        connection = await asyncpg.connect(self._url, timeout=1)
                        await connection.execute("create table if not exists probe (n bigint)")
                    await connection.execute("insert into probe values (1)", timeout=1)
                    self.times.append(time.monotonic())
                except FAILURES:
                    if connection is not None:
                        connection.terminate()
                await asyncio.sleep(0.02)
        finally:
            if connection is not None:
                connection.terminate()


async def test_promotions_under_load_lose_and_repeat_nothing(
    pair: StandbyPair, workers: Workers, tmp_path: Path
) -> None:
    choose = seeded()
    promotions = dose("PROMOTIONS", 1, 10)
    url = f"{pair.url()}&patience=60"
    stop = tmp_path / "stop"
    async with open_storage(url) as storage:
        talking = workers.start("converse_on", url, users=USERS, stop=str(stop))
        operating = workers.start(
            "operate_on", url, tasks=USERS, keys=USERS, seed=choose.randrange(1 << 32), stop=str(stop)
        )
        prober = Prober(url)
        probing = asyncio.create_task(prober.run())
        for number in range(promotions):
            if number:
                await pair.replace_standby()
            await pair.synchronize(("on", "remote_apply")[number % 2])
            await progress([talking], USERS, prober.times, 3)
            await asyncio.sleep(choose.uniform(0, 0.1))
            killed = time.monotonic()
            await asyncio.to_thread(pair.primary.kill)
            await pair.promote()
            await progress([talking], USERS, prober.times, 1)
            plain = pause_of(prober.times, killed)
            ours = longest_pause([talking], killed)
            print(f"promotion {number + 1}: a plain client waited {plain:.2f} s, users at most {ours:.2f} s")
            assert ours <= plain + LONGER
        stop.touch()
        probing.cancel()
        for worker in (talking, operating):
            await worker.wait_for("done")
        await asyncio.wait([probing])

        updates = await check_totals(storage, [talking])
    histories: dict[int, list[Op]] = defaultdict(list)
    for _, *fields in operating.reported("op"):
        op = Op(*fields)
        histories[op.key].append(op)
    for history in histories.values():
        check(history)
    operations = sum(map(len, histories.values()))
    print(f"{promotions} promotions, {updates} updates, {operations} operations")
    assert operations >= USERS * promotions
