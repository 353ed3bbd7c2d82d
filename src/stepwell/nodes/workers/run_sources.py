"""The runs that a worker takes: for each of its flows those with a due timer, and those in its queues."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from stepwell.dispatch import QueueSource, RecordSource, TaskLimit, TimerSource
from stepwell.errors import StoredDataError
from stepwell.nodes.queue.everywhere import Everywhere
from stepwell.nodes.queue.rates import Rate
from stepwell.nodes.run.notices import workers_topic
from stepwell.nodes.run.table import flow_indexes, table_of
from stepwell.record import RUNS, Address
from stepwell.storage.operations import Get

if TYPE_CHECKING:
    from stepwell.nodes.flow import NodeFlow
    from stepwell.nodes.queue.limits import Limit
    from stepwell.storage import Storage

    #: Takes up a run, and returns whether it was started.
    TakeUp = Callable[["RunSource", Address], Awaitable[bool]]

__all__ = ["DueRuns", "RunSource", "sources_of"]

#: The first and the longest pause, in seconds, before a run that is busy or could not be resumed is retried.
PAUSES = (0.5, 8.0)
#: The same for a queued run: another worker has just claimed it, or has died since then.
QUEUED_PAUSES = (0.05, 4.0)


class RunSource(RecordSource):
    """Runs of one flow, of all its revisions. ``take_up`` claims a run, because whoever calls the flow does so too."""

    flow: NodeFlow
    take_up: TakeUp
    rate: Rate | None
    #: The runs that were started with a permit of their flow's rate.
    permitted: set[Address]
    everywhere: Everywhere | None

    async def serve(self, address: Address) -> bool:
        """Run a run to its end or its next wait."""
        return await self.take_up(self, address)

    def ended(self, address: Address, *, served: bool) -> None:
        """Let other runs start in its place, and give back the permit of a run that another worker has started."""
        if self.everywhere is not None:
            self.everywhere.give_back(address, served=served)
        if address in self.permitted:
            self.permitted.discard(address)
            if not served and self.rate is not None:
                self.rate.give_back()

    def wake(self) -> None:
        """Read it as soon as a task may start; a run may have ended in another worker."""
        super().wake()
        if self.everywhere is not None:
            self.everywhere.look_again()

    @property
    def limits_free_at(self) -> float:
        """The loop time at which the limits over all workers may let a run start again."""
        times = [each.free_at for each in (self.rate, self.everywhere) if each is not None]
        return max(times, default=0.0)

    async def refused(self, found: list[Address], starts: list[Address]) -> set[Address]:
        """Return the found runs that the limits over all workers do not allow to go on now.

        ``starts``: those that have not started before, which the rate counts.
        """
        if self.everywhere is None:
            return await self._refused_by_rate(starts)
        allowed = await self.everywhere.take(found)
        refused = set(found).difference(allowed)
        for address in await self._refused_by_rate([each for each in starts if each in allowed]):
            self.everywhere.give_back(address, served=False)
            refused.add(address)
        return refused

    async def _refused_by_rate(self, starts: list[Address]) -> set[Address]:
        if self.rate is None or not starts:
            return set()
        permitted = starts[: await self.rate.take(len(starts))]
        self.permitted.update(permitted)
        return set(starts).difference(permitted)

    async def close(self) -> None:
        """Wait until the ends of its runs are known to other workers."""
        if self.everywhere is not None:
            await self.everywhere.close()


class QueuedRuns(RunSource, QueueSource):
    """The queued runs of a flow."""

    @property
    def free_at(self) -> float:
        """The loop time at which runs may start again."""
        return self.limits_free_at

    async def permit(self, found: list[Address]) -> list[Address]:
        """Return the runs that the limits of the flow allow to start now."""
        refused = await self.refused(found, found)
        if refused:
            # Not wake(): the limit over all workers has just said when to look again.
            super(RunSource, self).wake()
        return [address for address in found if address not in refused]


class DueRuns(RunSource, TimerSource):
    """The runs of a flow with a due timer: they sleep, wait with a timeout, have mail, or their runner has died."""

    async def permit(self, found: list[Address]) -> list[Address]:
        """Return the runs that the limits of the flow allow to go on now. A rate counts those that have not started."""
        if (self.rate is None and self.everywhere is None) or not found:
            return found
        refused = await self.refused(found, await self._not_started(found) if self.rate is not None else [])
        until = max(self.limits_free_at - asyncio.get_running_loop().time(), 0.01)
        for address in refused:
            self.pauses.add(address, (until, until))
        return [address for address in found if address not in refused]

    async def _not_started(self, found: list[Address]) -> list[Address]:
        records = await asyncio.gather(*(self.storage.perform(Get(address)) for address in found))
        waiting = []
        for address, stored in zip(found, records, strict=True):
            # A record that is damaged is reported when it is taken.
            with contextlib.suppress(StoredDataError):
                table = None if stored is None else table_of(await self.storage.read_head(address, stored), address)
                if table is not None and table["status"] == "queued":
                    waiting.append(address)
        return waiting


def sources_of(
    storage: Storage, flows: Iterable[NodeFlow], take_up: TakeUp, *, concurrency: int, limits: Mapping[str, Limit]
) -> list[RecordSource]:
    """Return the sources of a worker. ``limits``: the limits of single flows, by name."""
    shared = TaskLimit(concurrency)
    sources: list[RecordSource] = []
    for flow in flows:
        limit = limits.get(flow._title())
        own = None if limit is None or limit.concurrency is None else TaskLimit(limit.concurrency)
        rate = None if limit is None or limit.rate is None else Rate(storage, flow._title(), *limit.rate)
        indexes = flow_indexes(flow._title(), flow.revision)
        count = None if limit is None else limit.everywhere
        everywhere = None if count is None else Everywhere(storage, flow._title(), count, indexes)
        options: dict[str, Any] = {
            "limits": [shared] if own is None else [shared, own],
            "topics": [workers_topic(index) for index in indexes],
            "what": "run",
        }
        due = DueRuns(storage, RUNS, {}, flows=indexes, pauses=PAUSES, **options)
        queued = QueuedRuns(storage, RUNS, indexes, pauses=QUEUED_PAUSES, **options)
        for source in (due, queued):
            source.flow, source.take_up, source.rate, source.permitted = flow, take_up, rate, set()
            source.everywhere = everywhere
            sources.append(source)
    return sources
