"""Redis gives the same results as the reference, operation by operation."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.testing import Clock
from tests.backends.redis import Redis, RedisCluster
from tests.storage.differential import compare


@pytest.mark.parametrize("place", [Redis, RedisCluster], ids=lambda cls: cls.name)
@pytest.mark.parametrize("seed", range(3))
async def test_random_operations_have_the_results_of_the_reference(
    place: type[Redis | RedisCluster], seed: int, clock: Clock, tmp_path: Path
) -> None:
    backend = place(tmp_path)
    try:
        async with backend.storage(clock=clock, sweep_every=None) as storage:
            await compare(storage, clock, seed, steps=300)
    finally:
        await backend.close()
