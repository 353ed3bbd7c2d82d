"""Worker processes for pools, forked from one process that has imported the tests: each would take long to do so."""

from __future__ import annotations

import multiprocessing

__all__ = ["FORKING"]

FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(
    [f"tests.nodes.{name}" for name in ("test_executor", "test_durable_batch", "test_exits")]
)
