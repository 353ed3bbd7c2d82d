"""A promoted standby of PostgreSQL has every acknowledged write, and users wait little longer than for the server."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import asyncpg
import pytest

from stepwell import open_storage
from tests.reliability.dose import dose, seeded
from tests.reliability.linear import Op, check
from tests.reliability.workers import Worker, Workers
from tests.servers.standby import StandbyPair

#: Users of each of the two workers.
USERS = 25
#: Errors of a plain client during a promotion.
FAILURES = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
#: Seconds that a user may wait longer than a plain client of the servers.
LONGER = 2.0


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


def pause_of(times: list[float], since: float) -> float:
    """Return the longest time between two successes, from just before the kill on."""
    return max(later - earlier for earlier, later in pairwise(times) if later >= since)


def acknowledged(worker: Worker) -> dict[int, list[tuple[int, float]]]:
    """Return the id and time of each update of each user."""
    found: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for _, user, update_id, at in worker.reported("acknowledged"):
        found[user].append((update_id, at))
    return found


async def progress(worker: Worker, prober: Prober, updates: int) -> None:
    """Wait until each user has this many updates, and the plain client has one success, from now on."""
    since = time.monotonic()
    async with asyncio.timeout(120):
        while True:
            users = acknowledged(worker).values()
            recent = [sum(at > since for _, at in times[-updates:]) for times in users]
            if len(recent) == USERS and min(recent) >= updates and prober.times[-1:] > [since]:
                return
            assert worker.alive()
            await asyncio.sleep(0.05)


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
            await progress(talking, prober, 3)
            await asyncio.sleep(choose.uniform(0, 0.1))
            killed = time.monotonic()
            await asyncio.to_thread(pair.primary.kill)
            await pair.promote()
            await progress(talking, prober, 1)
            plain = pause_of(prober.times, killed)
            ours = max(pause_of([at for _, at in times], killed) for times in acknowledged(talking).values())
            print(f"promotion {number + 1}: a plain client waited {plain:.2f} s, users at most {ours:.2f} s")
            assert ours <= plain + LONGER
        stop.touch()
        probing.cancel()
        for worker in (talking, operating):
            await worker.wait_for("done")
        await asyncio.wait([probing])

        updates = acknowledged(talking)
        assert len(updates) == USERS
        totals = sorted((len(times), sum(update_id for update_id, _ in times)) for times in updates.values())
        stored = [entry.state.data async for entry in storage.scan("talk")]
        assert sorted((data["count"], data["total"]) for data in stored) == totals
    histories: dict[int, list[Op]] = defaultdict(list)
    for _, *fields in operating.reported("op"):
        op = Op(*fields)
        histories[op.key].append(op)
    for history in histories.values():
        check(history)
    operations = sum(map(len, histories.values()))
    print(f"{promotions} promotions, {sum(map(len, updates.values()))} updates, {operations} operations")
    assert operations >= USERS * promotions
