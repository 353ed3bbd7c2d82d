"""How the sync methods of a saver and a store run."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from stepwell import Storage
from stepwell.engine import sync_on

__all__ = ["run_blocking"]

T = TypeVar("T")


def run_blocking(storage: Storage, awaitable: Awaitable[T]) -> T:
    """Run an awaitable and wait for its result.

    It runs on the loop in which the storage is open: LangGraph runs ``def`` nodes of ``ainvoke()`` in threads, and they
    may call the store or another graph.
    """
    return sync_on(storage.loop, awaitable, "call the asynchronous method, such as graph.ainvoke() or store.aput(),")
