"""Wait for what a test needs, instead of sleeping."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

__all__ = ["forever", "until", "wait_until", "yields"]

from tests.reliability.dose import dose

#: Seconds. Machines that run many tests at once are slow.
PATIENCE = dose("PATIENCE", 60, 900)
PAUSE = 0.005


async def _result(found: Any) -> Any:
    if hasattr(found, "__aiter__"):
        return [each async for each in found]
    return await found if inspect.isawaitable(found) else found


async def until(look: Callable[[], Any], wanted: Callable[[Any], object] = bool, *, patience: float = PATIENCE) -> Any:
    """Call ``look`` until ``wanted(result)`` is true, and return the result.

    ``look`` may be async, or return an async iterator, whose list is the result.
    """
    give_up = time.monotonic() + patience
    while not wanted(found := await _result(look())):
        if time.monotonic() > give_up:
            raise TimeoutError(f"waited {patience:g} s in vain, found {found!r} at last")
        await asyncio.sleep(PAUSE)
    return found


def wait_until(look: Callable[[], Any], wanted: Callable[[Any], object] = bool, *, patience: float = PATIENCE) -> Any:
    """Do the same in a thread."""
    give_up = time.monotonic() + patience
    while not wanted(found := look()):
        assert time.monotonic() < give_up, f"waited {patience:g} s in vain, found {found!r} at last"
        time.sleep(PAUSE)
    return found


async def forever() -> None:
    """Wait to be cancelled."""
    await asyncio.sleep(3600)
    raise AssertionError("nothing cancelled this")


async def yields(times: int) -> None:
    """Let the tasks that are ready run so many times."""
    for _ in range(times):
        await asyncio.sleep(0)
