"""Finds the runs that a worker can take, and starts one task for each.

A source is a list of runs in the storage: the queues of all revisions of a flow, or its runs with a deadline in the
past. One query reads it: again when a wake-up names its flow, when its last read left runs behind, and with every tick.
While no place is free nothing is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from stepwell.errors import StoredDataError
from stepwell.nodes.queue.rates import Rate
from stepwell.nodes.run.notices import workers_topic
from stepwell.nodes.run.table import flow_indexes, table_of
from stepwell.record import RUNS, Address
from stepwell.storage import poller
from stepwell.storage.operations import Get
from stepwell.storage.poller import Pauses

if TYPE_CHECKING:
    from stepwell.nodes.flow import NodeFlow
    from stepwell.nodes.queue.limits import Limit
    from stepwell.storage import Storage

__all__ = ["Dispatcher", "RunSource"]

logger: logging.Logger = logging.getLogger(__name__)

#: The first and the longest pause, in seconds, before a run that is busy or could not be resumed is retried.
PAUSES = (0.5, 8.0)
#: The same for a queued run: another worker has just claimed it, or has died since then.
QUEUED_PAUSES = (0.05, 4.0)
#: The number of runs after which a source adapts its spread, and the largest spread.
SAMPLE, LARGEST_SPREAD = 16, 16
#: The most records that one read asks for.
LONGEST_READ = 10_000


class RunSource:
    """The queued or the due runs of a flow, of all its revisions together."""

    __slots__ = (
        "_lost", "_won", "again_at", "flow", "hot", "indexes", "pauses", "queued", "spread", "storage", "taking",
        "wakes",
    )  # fmt: skip

    def __init__(self, storage: Storage, flow: NodeFlow, *, queued: bool) -> None:
        self.storage: Storage = storage
        self.flow: NodeFlow = flow
        self.indexes: list[str] = flow_indexes(flow._title(), flow.revision)
        self.queued: bool = queued
        #: Whether there may be runs to take.
        self.hot: bool = True
        #: When to read it again without a wake-up, in loop time.
        self.again_at: float = 0.0
        self.wakes: int = 0
        #: The runs that this worker is about to start. Reads still return them.
        self.taking: set[Address] = set()
        #: The runs to ignore for a while. Reads still return them.
        self.pauses: Pauses = Pauses(*(QUEUED_PAUSES if queued else PAUSES))
        #: How many times as many runs as needed are read, to choose from them at random.
        self.spread: int = 1
        self._won = self._lost = 0

    def wake(self) -> None:
        """Read it again as soon as a place is free."""
        self.hot = True
        self.wakes += 1

    def tried(self, *, won: bool) -> None:
        """Count a run that this worker has taken, or that another worker has taken first.

        Workers that take the first runs at the same time take the same ones. Each of them then chooses from more runs
        than it needs. A worker that is alone takes them in their order.
        """
        if won:
            self._won += 1
        else:
            self._lost += 1
        if self._won + self._lost >= SAMPLE:
            if self._lost > self._won / 8:
                self.spread = min(2 * self.spread, LARGEST_SPREAD)
            elif self._lost < self._won / 50:
                self.spread = max(self.spread // 2, 1)
            self._won = self._lost = 0

    async def find(self, count: int, ignored: Callable[[Address], bool]) -> list[Address]:
        """Return up to ``count`` runs to take; if there are no more, the source rests until the next tick."""
        wakes, limit = self.wakes, count * self.spread + len(self.taking) + len(self.pauses)
        while True:
            found = await self._read(limit)
            fresh = [address for address in found if not (address in self.taking or ignored(address))]
            fresh = [address for address in fresh if address not in self.pauses]
            if len(found) < limit:
                self.pauses.keep(set(found))
            if fresh or len(found) < limit or limit >= LONGEST_READ:
                break
            limit = min(4 * limit, LONGEST_READ)
        if (len(found) < limit and len(fresh) <= count) or not fresh:
            self._rest(wakes)
        if self.spread > 1 and len(fresh) > count:
            # Adjacent ones: a batch of claims waits for another one if they have a single run in common.
            first = self.storage.rng.randint(0, min(len(fresh), count * self.spread) - count)
            return fresh[first : first + count]
        return fresh[:count]

    async def _read(self, limit: int) -> list[Address]:
        if self.queued:
            return await self.storage.queued(RUNS, self.indexes, limit=limit)
        return [due.address for due in await self.storage.due(RUNS, flow=self.indexes, limit=limit)]

    def _rest(self, wakes: int) -> None:
        if self.wakes == wakes:
            self.hot = False
            self.again_at = asyncio.get_running_loop().time() + poller.TICK * self.storage.rng.uniform(0.8, 1.2)


class Dispatcher:
    """Starts ``handle(source, address)`` for each run that it finds, at most ``concurrency`` at once.

    The sources take turns, and share the free places. ``limits``: the limits of single flows, by name.
    """

    def __init__(
        self,
        storage: Storage,
        flows: Iterable[NodeFlow],
        handle: Callable[[RunSource, Address], Coroutine[Any, Any, None]],
        *,
        concurrency: int,
        limits: Mapping[str, Limit],
    ) -> None:
        self._storage = storage
        self._handle = handle
        self._concurrency = concurrency
        self._limits = limits
        self._rates = {
            name: Rate(storage, name, *limit.rate) for name, limit in limits.items() if limit.rate is not None
        }
        #: The runs that were started with a permit of their flow's rate.
        self._permitted: set[Address] = set()
        #: The sources in the order of their turns.
        self._sources: deque[RunSource] = deque(
            RunSource(storage, flow, queued=queued) for flow in flows for queued in (False, True)
        )
        self._running: dict[Address, asyncio.Task[None]] = {}
        #: The number of running runs of each flow.
        self._of_flow: Counter[NodeFlow] = Counter()
        self._awake = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._unlisten: list[Callable[[], None]] = []

    def start(self) -> None:
        """Start taking runs."""
        for index in {index for source in self._sources for index in source.indexes}:
            self._unlisten.append(self._storage.listen(workers_topic(index), partial(self.wake, index)))
        looking = poller.poll(self.look, self._rest, "runs")
        self._looking = asyncio.get_running_loop().create_task(looking, name="stepwell-runs")

    async def stop(self) -> None:
        """Stop, and cancel the running tasks. Their runs are either committed or stay due."""
        for unlisten in self._unlisten:
            unlisten()
        self._unlisten.clear()
        looking, self._looking = self._looking, None
        ending = [task for task in (looking, *self._running.values()) if task is not None]
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)

    def wake(self, index: str) -> None:
        """Read the sources of one revision of a flow as soon as a place is free."""
        for source in self._sources:
            if index in source.indexes:
                source.wake()
        self._awake.set()

    async def look(self) -> None:
        """Start runs until all places are taken or no source has more."""
        now = asyncio.get_running_loop().time()
        for source in self._sources:
            if source.again_at <= now:
                source.hot = True
        while (free := self._free()) > 0:
            hot = [source for source in self._sources if source.hot and self._room(source) > 0]
            if not hot:
                return
            source = hot[0]
            self._sources.remove(source)
            self._sources.append(source)
            # Rounded up, so that each of them gets a place when there are fewer places than sources.
            share = -(-free // len(hot))
            found = await source.find(min(share, self._room(source)), self._ignores)
            for address in await self._permit(source, found):
                self._begin(source, address)

    def _free(self) -> int:
        return self._concurrency - len(self._running)

    def _room(self, source: RunSource) -> int:
        """Return how many runs of its flow may start, as far as the limits of the flow go."""
        name = source.flow._title()
        limit, rate = self._limits.get(name), self._rates.get(name)
        if source.queued and rate is not None and rate.free_at > asyncio.get_running_loop().time():
            return 0
        most = None if limit is None else limit.concurrency
        return self._concurrency if most is None else most - self._of_flow[source.flow]

    async def _permit(self, source: RunSource, found: list[Address]) -> list[Address]:
        """Return the runs that the rate of the flow allows to start now."""
        rate = self._rates.get(source.flow._title())
        if rate is None or not found:
            return found
        # A rate limits starts: a run that has started before needs no permit.
        starts = found if source.queued else await self._not_started(found)
        permitted = set(starts[: await rate.take(len(starts))] if starts else ())
        self._permitted |= permitted
        refused = {address for address in starts if address not in permitted}
        if refused and source.queued:
            source.wake()
        until = max(rate.free_at - asyncio.get_running_loop().time(), 0.01)
        for address in refused:
            if not source.queued:
                source.pauses.add(address, (until, until))
        return [address for address in found if address not in refused]

    async def _not_started(self, found: list[Address]) -> list[Address]:
        records = await asyncio.gather(*(self._storage.perform(Get(address)) for address in found))
        waiting = []
        for address, stored in zip(found, records, strict=True):
            # A record that is damaged is reported when it is taken.
            with contextlib.suppress(StoredDataError):
                table = None if stored is None else table_of(await self._storage.read_head(address, stored), address)
                if table is not None and table["status"] == "queued":
                    waiting.append(address)
        return waiting

    def _ignores(self, address: Address) -> bool:
        # This process may run it already, without this worker.
        return address in self._running or address in self._storage.waiters

    async def _rest(self, pause: float) -> None:
        """Wait until there may be something to do."""
        if pause:
            await asyncio.sleep(pause * self._storage.rng.uniform(0.8, 1.2))
            return
        loop = asyncio.get_running_loop()
        ready = [source.again_at for source in self._sources if self._room(source) > 0]
        ready += [rate.free_at for rate in self._rates.values() if rate.free_at > loop.time()]
        timer = None
        if ready and self._free() > 0:
            timer = loop.call_at(min(ready), self._awake.set)
        try:
            await self._awake.wait()
        finally:
            self._awake.clear()
            if timer is not None:
                timer.cancel()

    def _begin(self, source: RunSource, address: Address) -> None:
        source.taking.add(address)
        self._of_flow[source.flow] += 1
        task = asyncio.get_running_loop().create_task(self._handle(source, address), name=f"stepwell-run {address.key}")
        self._running[address] = task
        task.add_done_callback(lambda task: self._ended(source, address, task))

    def _ended(self, source: RunSource, address: Address, task: asyncio.Task[None]) -> None:
        if address in self._permitted:
            self._permitted.discard(address)
            if address in source.taking:
                # Another worker has started it.
                self._rates[source.flow._title()].give_back()
        source.taking.discard(address)
        self._of_flow[source.flow] -= 1
        del self._running[address]
        if not task.cancelled() and task.exception() is not None:
            logger.error("handling the run at %s failed", address.text, exc_info=task.exception())
            source.pauses.add(address)
        self._awake.set()
