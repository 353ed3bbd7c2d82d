"""The queues of submitted runs: how many wait in each, in which order they are taken, and who takes them."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from stepwell import Storage
from stepwell.engine import RUNS, Address, decode_key, quoted
from stepwell.errors import StepwellError, StoredDataError
from stepwell.nodes import Run
from stepwell.nodes.engine import flow_of_index, holder_of
from stepwell.operate.run_list import DamagedRun
from stepwell.operate.runs import show_run

__all__ = ["QueueView", "QueuedPage", "UnknownQueue", "queued_runs", "queues"]

#: The most waiting runs that are counted in one queue.
MOST_COUNTED: Final = 1000


class UnknownQueue(StepwellError, LookupError):
    """The storage has no such queue."""

    def __init__(self, name: str) -> None:
        self.name: str = name
        super().__init__(f"no run waits in a queue {quoted(name)}; it may have been empty for a while")


class QueueView(NamedTuple):
    """One queue: of a revision of a flow, or of one partition of a flow."""

    #: Its name in the storage.
    name: str
    flow: str
    revision: int
    #: The partition as text; ``None`` for the queue of the flow, from which workers take runs.
    partition: str | None
    waiting: int
    #: Whether there are more than ``waiting``.
    more: bool
    #: The run that is taken next.
    next: Run | DamagedRun | None
    #: The run that has the partition.
    holder: str | None


class QueuedPage(NamedTuple):
    """Some waiting runs of a queue, in the order in which they are taken."""

    runs: list[Run | DamagedRun]
    #: Whether there are more behind them.
    more: bool


async def queues(
    storage: Storage, *, flow: str = "", after: str = "", limit: int
) -> tuple[list[QueueView], str | None]:
    """Return the queues with waiting runs by name, and the name behind which the next ones begin.

    ``flow``: how the names of their flows begin. It reads about as many records as it counts.
    """
    await storage.ensure_open()
    names = await storage.queues(RUNS, prefix=flow, after=after, limit=limit)
    views = await asyncio.gather(*(_view(storage, name) for name in names))
    return list(views), names[-1] if len(names) == limit else None


async def queued_runs(storage: Storage, name: str, *, skip: int, limit: int) -> QueuedPage:
    """Return a page of a queue. It reads the addresses of those before. Raises ``UnknownQueue`` if it is empty."""
    await storage.ensure_open()
    found: list[Address] = await storage.queued(RUNS, name, limit=skip + limit + 1)
    if not found:
        raise UnknownQueue(name)
    page = await asyncio.gather(*(_run(storage, address) for address in found[skip : skip + limit]))
    return QueuedPage([run for run in page if run is not None], len(found) > skip + limit)


async def _view(storage: Storage, name: str) -> QueueView:
    index, slash, partition = name.partition("/")
    flow, revision = flow_of_index(index)
    found = await storage.queued(RUNS, name, limit=MOST_COUNTED + 1)
    first = await _run(storage, found[0]) if found else None
    holder = await holder_of(storage, flow, partition) if slash else None
    waiting = min(len(found), MOST_COUNTED)
    return QueueView(name, flow, revision, partition if slash else None, waiting, len(found) > waiting, first, holder)


async def _run(storage: Storage, address: Address) -> Run | DamagedRun | None:
    flow_id = str(decode_key(address.key))
    try:
        return await show_run(storage, flow_id)
    except StoredDataError as error:
        return DamagedRun(flow_id, str(error))
    except LookupError:
        # It has been taken and has ended meanwhile.
        return None
