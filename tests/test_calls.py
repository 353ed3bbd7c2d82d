"""One update and one durable node make no more Python calls than before."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from benchmarks import calls

from stepwell import open_storage

KNOWN = calls.FIGURES.get(sys.version_info[:2])


@pytest.mark.skipif(KNOWN is None, reason="benchmarks/calls.py has no figures for this version of Python")
@pytest.mark.skipif(sys.getprofile() is not None, reason="another profiler is running")
@pytest.mark.parametrize("where", ["memory", "sqlite"])
async def test_calls_do_not_grow(where: str, tmp_path: Path) -> None:
    assert KNOWN is not None
    update, node = KNOWN[where]
    url = "memory://" if where == "memory" else f"sqlite:///{tmp_path}/calls.db"
    counter = calls.Counter()
    counter.start()
    try:
        async with open_storage(url, sweep_every=None) as storage:
            # Threads of SQLite may take a few calls more under load, so the lowest of three figures counts.
            updates = min([await calls.updates(counter, storage, 1) for _ in range(3)])
            nodes = min([await calls.nodes(counter, storage) for _ in range(3)])
    finally:
        counter.stop()
    most = 1 + calls.GROWTH
    assert updates <= update * most, f"one update makes {updates:.1f} calls, before {update}; see benchmarks/calls.py"
    assert nodes <= node * most, f"one durable node makes {nodes:.1f} calls, before {node}; see benchmarks/calls.py"
