"""Calls in the event loop in which a storage is open, from other loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from stepwell.errors import OutcomeUnknown
from stepwell.storage.contract import Storage

__all__ = ["run_in_loop"]

T = TypeVar("T")

#: Seconds between two checks whether the loop of the storage still runs.
LOOP_POLL: Final = 0.5


async def run_in_loop(
    storage: Storage,
    call: Callable[[], Coroutine[Any, Any, T]],
    what: str,
    *,
    default: asyncio.AbstractEventLoop | None = None,
) -> T:
    """Call a function that uses a storage in the loop in which that is open, which may run in another thread.

    A storage that is not open is used in this loop, or in ``default``. ``what``: names the record in the error.
    Raises ``OutcomeUnknown`` if the loop stops meanwhile.

    Example::

        from stepwell.engine import run_in_loop

        await run_in_loop(storage, lambda: storage.set_data("my_bot", 42, {"name": "Ann"}), "my_bot/42")
    """
    here = asyncio.get_running_loop()
    loop = storage.foreign_loop
    if loop is None and storage.loop is not here:
        loop = default
    if loop is None or loop is here:
        return await call()
    future = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(), loop))
    try:
        while not future.done() and loop.is_running():
            await asyncio.wait([future], timeout=LOOP_POLL)
        if not future.done() or future.cancelled():
            raise OutcomeUnknown(what, "the event loop in which the storage is open has stopped")
        return future.result()
    finally:
        future.cancel()
