"""The start of a program whose storage is away: wait for it instead of failing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from time import monotonic
from types import FrameType
from typing import Any, TypeVar

from stepwell._backoff import backoff, jittered
from stepwell.errors import OutcomeUnknown, StorageError, StorageFull, StorageUnavailable
from stepwell.storage.contract import Storage
from stepwell.storage.transport.outage import OutageLog

__all__ = ["when_available"]

logger: logging.Logger = logging.getLogger("stepwell.storage")

#: Seconds before the next attempt: the first pause, and the longest. The storage itself waits for a server meanwhile.
PAUSES = (0.25, 5.0)

T = TypeVar("T")


async def when_available(start: Callable[[], Awaitable[T]], storage: Storage, *, wait: bool = True) -> T:
    """Call ``start`` until the storage is available, and return its result. ``wait=False``: call it once.

    Raises the error of the storage if waiting is pointless, as after a wrong password. A signal that another part of
    the program handles ends the waiting with the last error: a server that is starting only takes note of it.

    Example::

        from stepwell.engine import when_available

        await when_available(storage.open, storage)
    """
    log = OutageLog(
        logger, f"waiting for the storage, {storage.location}, before the start: %s", "the storage works again"
    )
    began = monotonic()
    with _noticed_signals() as stopped:
        for failures in count(1):
            try:
                started = await start()
            except StorageError as error:
                if not wait or not _may_recover(error) or stopped.is_set():
                    raise
                log.failed(error)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(jittered(backoff(failures, *PAUSES))):
                        await stopped.wait()
                if stopped.is_set():
                    raise
            else:
                if failures > 1:
                    logger.warning("the storage is available, after %.0f s", monotonic() - began)
                return started
    raise AssertionError("count() does not end")


def _may_recover(error: StorageError) -> bool:
    if isinstance(error, StorageUnavailable):
        return not error.final
    return isinstance(error, StorageFull | OutcomeUnknown)


@contextlib.contextmanager
def _noticed_signals() -> Iterator[asyncio.Event]:
    """Yield an event that SIGTERM and Ctrl-C set, in addition to what the program does at these signals."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    before: dict[signal.Signals, Callable[[int, FrameType | None], Any]] = {}

    def notice(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(stopped.set)
        before[signal.Signals(number)](number, frame)

    # Outside the main thread there are no handlers of signals.
    with contextlib.suppress(ValueError):
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if callable(handler) and not isinstance(handler, signal.Handlers):
                before[number] = handler
                signal.signal(number, notice)
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is notice:
                signal.signal(number, handler)
