"""SIGTERM stops a command as Ctrl-C does, and a server runs until one of them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

__all__ = ["Terminated", "run", "stopped"]

_Result = TypeVar("_Result")


class Terminated(Exception):
    """SIGTERM has stopped the command."""


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run the work of a command. SIGTERM cancels it, so that it releases the records that it holds.

    Raises ``Terminated`` after SIGTERM.
    """
    return asyncio.run(_stoppable(work))


async def _stoppable(work: Coroutine[Any, Any, _Result]) -> _Result:
    task = asyncio.ensure_future(work)
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        task.cancel()

    # Windows has no such handlers, and they need the main thread.
    with suppress(NotImplementedError, RuntimeError, ValueError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    try:
        return await task
    except asyncio.CancelledError:
        if stopped:
            raise Terminated from None
        raise


async def stopped() -> None:
    """Wait for SIGTERM or Ctrl-C, which then cancels nothing."""
    ended = asyncio.Event()
    # On Windows Ctrl-C raises KeyboardInterrupt instead.
    with suppress(NotImplementedError):
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await ended.wait()
