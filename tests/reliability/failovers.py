"""The updates of users during a failover, and how long they and a plain client waited."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Container, Sequence
from itertools import pairwise

import redis

from stepwell import Storage
from tests.reliability.workers import Worker
from tests.servers.redis import RedisServer

#: Seconds that a user may wait longer than a plain client of the servers.
LONGER = 2.0


class Prober:
    """A plain client in a thread that writes to any server that a replica follows, and notes its successes."""

    def __init__(self, servers: list[RedisServer], key: str = "probe") -> None:
        self._servers = servers
        self._key = key
        self._stopped = threading.Event()
        self.times: list[float] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(0.02):
            for server in self._servers:
                try:
                    with server.client(socket_timeout=0.3) as client:
                        if client.set(self._key, 1) and client.wait(1, 200):
                            self.times.append(time.monotonic())
                            break
                except redis.RedisError:
                    continue

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def pause_of(times: Sequence[float], since: float) -> float:
    """Return the longest time between two successes, from just before the kill on."""
    return max(later - earlier for earlier, later in pairwise(times) if later >= since)


def acknowledged(*workers: Worker) -> dict[int, list[tuple[int, float]]]:
    """Return the id and time of each update of each user."""
    found: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for worker in workers:
        for _, user, update_id, at in worker.reported("acknowledged"):
            found[user].append((update_id, at))
    return found


async def progress(workers: Sequence[Worker], users: int, probes: Sequence[float], updates: int) -> None:
    """Wait until each user has this many updates, and the plain client has one success, from now on."""
    since = time.monotonic()
    async with asyncio.timeout(120):
        while True:
            found = acknowledged(*workers).values()
            recent = [sum(at > since for _, at in times[-updates:]) for times in found]
            if len(recent) == users and min(recent) >= updates and list(probes[-1:]) > [since]:
                return
            assert all(worker.alive() for worker in workers)
            await asyncio.sleep(0.05)


def longest_pause(workers: Sequence[Worker], since: float, users: Container[int] | None = None) -> float:
    """Return the longest time that a user, or one of these users, waited between two updates."""
    return max(
        pause_of([at for _, at in times], since)
        for user, times in acknowledged(*workers).items()
        if users is None or user in users
    )


async def check_totals(storage: Storage, workers: Sequence[Worker]) -> int:
    """Check that the stored counts are those of the acknowledged updates; return how many there are."""
    updates = acknowledged(*workers)
    totals = sorted((len(times), sum(update_id for update_id, _ in times)) for times in updates.values())
    stored = [entry.state.data async for entry in storage.scan("talk")]
    assert sorted((data["count"], data["total"]) for data in stored) == totals
    return sum(map(len, updates.values()))
