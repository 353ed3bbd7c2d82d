"""Finds the runs whose runner has died on this machine, so that a worker that starts need not wait for their leases."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Iterable
from typing import TYPE_CHECKING

from stepwell.errors import StepwellError
from stepwell.nodes.run import journal
from stepwell.record import RUNS
from stepwell.slot.process import has_died

if TYPE_CHECKING:
    from stepwell.record import Address
    from stepwell.storage import Storage
    from stepwell.storage.listing import Due

__all__ = ["of_dead_processes", "soon_due"]

logger: logging.Logger = logging.getLogger(__name__)

#: The most runs that a worker checks when it starts.
MOST = 1000


async def soon_due(storage: Storage, indexes: Iterable[str]) -> list[Due]:
    """Return the runs that are due soon, with one read. Those that run are, because a worker checks them then."""
    if not storage.shared:
        return await storage.due(RUNS, limit=1)
    now = time.time() if storage.clock is None else storage.clock()
    return await storage.due(RUNS, flow=list(indexes), before=now + 2 * journal.WATCH, limit=MOST)


async def of_dead_processes(storage: Storage, found: Iterable[Due]) -> AsyncGenerator[Address, None]:
    """Yield those of the runs that a process of this machine holds which has died.

    Best effort: otherwise workers find these runs when their leases end.
    """
    try:
        for due in found if storage.shared else ():
            holder = None if due.address in storage.waiters else (await storage.beside(due.address)).holder
            if holder is not None and has_died(holder):
                yield due.address
    except StepwellError as error:
        logger.info("the runs of processes that have died are taken when their leases end (%s)", error)
