"""The updates of users during a failover, and how long they and a plain client waited."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from stepwell import Storage
from tests.reliability.workers import Worker

#: Seconds that a user may wait longer than a plain client of the servers.
LONGER = 2.0


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


def longest_pause(workers: Sequence[Worker], since: float) -> float:
    """Return the longest time that a user waited between two updates."""
    return max(pause_of([at for _, at in times], since) for times in acknowledged(*workers).values())


async def check_totals(storage: Storage, workers: Sequence[Worker]) -> int:
    """Check that the stored counts are those of the acknowledged updates; return how many there are."""
    updates = acknowledged(*workers)
    totals = sorted((len(times), sum(update_id for update_id, _ in times)) for times in updates.values())
    stored = [entry.state.data async for entry in storage.scan("talk")]
    assert sorted((data["count"], data["total"]) for data in stored) == totals
    return sum(map(len, updates.values()))
