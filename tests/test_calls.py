"""One update and one durable node make no more Python calls than before."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
from benchmarks import calls

from stepwell import open_storage
from tests.backends import Backend
from tests.backends.memory import Memory
from tests.backends.postgres import Postgres
from tests.backends.redis import Redis
from tests.backends.sqlite import SQLite

KNOWN = calls.FIGURES.get(sys.version_info[:2])


@pytest.mark.skipif(KNOWN is None, reason="benchmarks/calls.py has no figures for this version of Python")
@pytest.mark.skipif(sys.getprofile() is not None, reason="another profiler is running")
@pytest.mark.parametrize("kind", [Memory, SQLite, Redis, Postgres], ids=lambda kind: kind.name)
async def test_calls_do_not_grow(kind: type[Backend], tmp_path: Path) -> None:
    assert KNOWN is not None
    update, node = KNOWN[kind.name]
    most = 1 + calls.GROWTH
    backend = kind(tmp_path)
    counter = calls.CallCounter()
    counter.start()
    try:
        async with open_storage(backend.place(), sweep_every=None) as storage:
            # Threads and sockets take more calls under load, so the lowest figure counts.
            updates = nodes = math.inf
            for _ in range(10):
                if updates > update * most:
                    updates = min(updates, await calls.updates(counter, storage, 1))
                if nodes > node * most:
                    nodes = min(nodes, await calls.nodes(counter, storage))
    finally:
        counter.stop()
        await backend.close()
    assert updates <= update * most, f"one update makes {updates:.1f} calls, before {update}; see benchmarks/calls.py"
    assert nodes <= node * most, f"one durable node makes {nodes:.1f} calls, before {node}; see benchmarks/calls.py"
