"""Finds the runs whose runner has died on this machine, so that a worker that starts need not wait for their leases."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from stepwell.codec import encode_namespace
from stepwell.errors import StepwellError
from stepwell.nodes.run.table import flow_indexes
from stepwell.record import RUNS, Address
from stepwell.slot.process import has_died
from stepwell.storage.listing import Query

if TYPE_CHECKING:
    from stepwell.nodes.flow import NodeFlow
    from stepwell.storage import Storage

__all__ = ["runs_of_dead_processes"]

logger: logging.Logger = logging.getLogger(__name__)

#: The number of runs that are read at once.
PAGE = 500


async def runs_of_dead_processes(storage: Storage, flow: NodeFlow) -> AsyncGenerator[Address, None]:
    """Yield the running runs of a flow that a process of this machine holds which has died.

    It reads the lease of each running run once. Best effort: otherwise workers find these runs when their leases end.
    """
    if not storage.shared:
        return
    try:
        for index in flow_indexes(flow._title(), flow.revision):
            query = Query(encode_namespace(RUNS, storage.limits), index, "running")
            after: Any = None
            while True:
                records, after = await storage.page(query, after, PAGE)
                for address, _ in records:
                    holder = None if address in storage.waiters else (await storage.beside(address)).holder
                    if holder is not None and has_died(holder):
                        yield address
                if after is None:
                    break
    except StepwellError as error:
        logger.info("the runs of processes that have died are taken when their leases have ended (%s)", error)
