"""The background sweep of a storage, which removes expired records."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol, TypeAlias

from stepwell.errors import StorageClosed, StorageUnavailable
from stepwell.record import Address
from stepwell.storage.listing import Swept

__all__ = ["ExpiredListener", "Sweeper", "notify_expired"]

logger: logging.Logger = logging.getLogger(__name__)

#: Called with the address and the sealed head of an expired record.
ExpiredListener: TypeAlias = Callable[[Address, str | None], Awaitable[Any]]

#: How many records one call of ``sweep`` may remove.
PAGE = 500


class Sweepable(Protocol):
    """A storage with expired records."""

    expired_listeners: list[ExpiredListener]

    @property
    def is_open(self) -> bool:
        """Whether it is open."""

    async def sweep(self, limit: int = ...) -> Swept:
        """Remove up to ``limit`` expired records."""


class Sweeper:
    """Sweeps an open storage every ``every`` seconds; never if that is ``None``."""

    __slots__ = ("_every", "_storage", "_task", "_timer")

    def __init__(self, storage: Sweepable, every: float | None) -> None:
        # A weak reference, so that the timer does not keep an unused storage alive.
        self._storage = weakref.ref(storage)
        self._every = every
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin in this event loop. The first sweep is after a pause."""
        self._task = None
        if self._every is not None:
            self._timer = asyncio.get_running_loop().call_later(self._every, self._begin)

    async def stop(self) -> None:
        """Cancel the sweep."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _begin(self) -> None:
        storage = self._storage()
        if storage is not None and storage.is_open:
            self._task = asyncio.get_running_loop().create_task(self.sweep(storage), name="stepwell-sweep")

    async def sweep(self, storage: Sweepable) -> None:
        """Remove all expired records, and schedule the next sweep."""
        try:
            while True:
                swept = await storage.sweep(PAGE)
                await notify_expired(storage.expired_listeners, swept)
                if swept.removed < PAGE:
                    break
                # Sweeping is low priority: yield between pages.
                await asyncio.sleep(0.05)
        except StorageClosed:
            return
        except StorageUnavailable as error:
            logger.warning("sweeping failed: %s; next attempt in %s s", error, self._every)
        except Exception:
            logger.exception("sweeping failed; next attempt in %s s", self._every)
        finally:
            self._task = None
        if storage.is_open:
            self.start()


async def notify_expired(listeners: Iterable[ExpiredListener], swept: Swept) -> None:
    """Call the listeners with each expired record that a sweep has removed."""
    for address, head in swept.expired:
        for listener in listeners:
            try:
                await listener(address, head)
            except Exception:
                logger.exception("a listener for expired records failed")
