"""A new master has every acknowledged write, and users wait little longer than for the Sentinels."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stepwell import State, open_storage
from stepwell.errors import OutcomeUnknown, StorageUnavailable
from tests.reliability.dose import LARGE, dose, seeded
from tests.reliability.failovers import LONGER, Prober, check_totals, longest_pause, pause_of, progress
from tests.reliability.workers import Worker, Workers
from tests.servers.redis import RedisServer, Sentinels
from tests.until import until

#: Users of each of the two workers.
USERS = 25
URL = "?durability=wait&patience=60"


@pytest.fixture(scope="module")
def sentinels() -> Iterator[Sentinels]:
    sentinels = Sentinels()
    yield sentinels
    sentinels.stop()


class Load:
    """Two workers with users, and a plain client."""

    def __init__(self, talking: list[Worker], prober: Prober) -> None:
        self._talking = talking
        self._prober = prober

    async def progress(self, updates: int) -> None:
        await progress(self._talking, 2 * USERS, self._prober.times, updates)

    def check_pauses(self, since: float, what: str) -> None:
        plain, ours = pause_of(self._prober.times, since), longest_pause(self._talking, since)
        print(f"{what}: a plain client waited {plain:.2f} s, users at most {ours:.2f} s")
        assert ours <= plain + LONGER


@asynccontextmanager
async def load(sentinels: Sentinels, workers: Workers, prefix: str, stop: Path) -> AsyncIterator[Load]:
    """Run users until the end of the block, and then check their totals."""
    await asyncio.to_thread(sentinels.until_ready)
    url = sentinels.url(f"{URL}&prefix={prefix}")
    talking = [workers.start("converse_on", url, users=USERS, first=first, stop=str(stop)) for first in (1, 1 + USERS)]
    prober = Prober(sentinels.servers)
    try:
        yield Load(talking, prober)
        stop.touch()
        for worker in talking:
            await worker.wait_for("done", timeout=120)
    finally:
        await asyncio.to_thread(prober.stop)
    async with open_storage(url) as storage:
        print(f"{await check_totals(storage, talking)} updates")


async def test_killed_masters_under_load_lose_and_repeat_nothing(
    sentinels: Sentinels, workers: Workers, tmp_path: Path
) -> None:
    choose = seeded()
    failovers = dose("FAILOVERS", 1, 10)
    async with load(sentinels, workers, "kill", tmp_path / "stop") as users:
        for number in range(failovers):
            await users.progress(3)
            await asyncio.sleep(choose.uniform(0, 0.1))
            victim = sentinels.master()
            killed = time.monotonic()
            victim.process.kill()
            await users.progress(2)
            users.check_pauses(killed, f"failover {number + 1}")
            # The Sentinels learn of the new master one after the other.
            await until(lambda: sentinels.master() is not victim)
            # In this thread: the server ends with the thread that has started it.
            _restart(sentinels, victim, choose)
            await asyncio.to_thread(sentinels.until_ready)


def _restart(sentinels: Sentinels, victim: RedisServer, choose: random.Random) -> None:
    """Start a killed master again: as a replica, or with the large dose also as the master that it was."""
    if LARGE and choose.random() < 0.5:
        victim.start()
    else:
        victim.start("--replicaof", "127.0.0.1", str(sentinels.master().port))


async def test_a_suspended_master_that_continues_acknowledges_nothing(
    sentinels: Sentinels, workers: Workers, tmp_path: Path
) -> None:
    async with load(sentinels, workers, "suspend", tmp_path / "stop") as users:
        for number in range(dose("SUSPENSIONS", 1, 5)):
            await users.progress(3)
            former = sentinels.master()
            # This client does not know of Sentinels, so it stays at the former master.
            async with open_storage(former.url("?prefix=stays"), durability="wait", patience=0, timeout=1) as stays:
                await stays.set_state("bot", 1, State("f", "before"))
                suspended = time.monotonic()
                former.process.pause()
                await users.progress(2)
                users.check_pauses(suspended, f"suspension {number + 1}")
                former.process.resume()
                refused = 0
                with former.client() as client:
                    while client.info("replication")["role"] == "master" and refused < 5:
                        with pytest.raises((StorageUnavailable, OutcomeUnknown)):
                            await stays.set_state("bot", 1, State("f", "after"))
                        refused += 1
                assert refused
                await users.progress(2)
            if LARGE:
                await asyncio.to_thread(sentinels.until_ready)
