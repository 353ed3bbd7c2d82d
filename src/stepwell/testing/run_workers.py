"""The submitted runs of a bot in a test: those that are due run while the test advances the time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from stepwell.errors import Unsupported
from stepwell.fsm import Router
from stepwell.fsm.beside import WorkerOptions
from stepwell.record import RUNS
from stepwell.storage import Storage

if TYPE_CHECKING:
    from stepwell.nodes import worker

__all__ = ["is_due", "is_running", "run_due"]

#: Seconds, in real time, that runs may take.
PATIENCE: Final = 10.0
#: Seconds between two looks at the runs.
LOOK: Final = 0.002


async def run_due(router: Router) -> None:
    """Run the runs of ``router.run_workers(...)`` that are queued or due, until each has ended, waits or sleeps."""
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(each) for each in _workers(router)]
        give_up = monotonic() + PATIENCE
        while any([await _works(each) for each in workers]):
            if monotonic() > give_up:
                raise TimeoutError(f"the runs of the bot have not ended within {PATIENCE:g} seconds")
            await asyncio.sleep(LOOK)
    assert router.fsm is not None
    # What nodes have answered in conversations.
    await asyncio.gather(*router.fsm.deliveries)


def _workers(router: Router) -> Iterator[worker]:
    given = [each for lifecycle in router.lifecycles for each in lifecycle.beside if isinstance(each, WorkerOptions)]
    if not given:
        return
    # Most bots have none, and their tests need not import node flows.
    from stepwell.nodes import worker

    assert router.fsm is not None
    for flows, options in given:
        unstored = any(flow.storage is None for flow in flows)
        own: dict[str, Any] = {"storage": router.fsm.storage} if unstored else {}
        yield worker(flows, **{"presence": False, **own, **options})


async def _works(each: worker) -> bool:
    from stepwell.nodes.run.table import flow_indexes

    storage: Storage = each.storage
    for flow in each.flows:
        for name in flow_indexes(flow._title(), flow.revision):
            if await storage.queued(RUNS, [name], limit=1) or await is_due(storage, RUNS, name):
                return True
    # After the reads, because the worker may have claimed a run meanwhile.
    return is_running(storage, RUNS)


async def is_due(storage: Storage, namespace: str, flow: str) -> bool:
    """Return whether a record of a flow is due and free: nobody works on it, and no killed bot has it."""
    for due in await storage.due(namespace, flow=flow):
        holder = None
        with suppress(Unsupported):
            holder = (await storage.beside(due.address)).holder
        if holder is None:
            return True
    return False


def is_running(storage: Storage, namespace: str) -> bool:
    """Return whether this process works on a record of a namespace."""
    dispatcher = storage.dispatcher
    return dispatcher is not None and any(source.namespace == namespace for source, _ in dispatcher._running.values())
