"""Reads all sources of a storage in one task, and starts one task for each record that may be served.

With every tick one query for all timers, and one for the queues of a namespace, tell whether there is anything to
serve. Only then each source is read. So an idle process reads the same whatever the number of its sources. A source is
also read after a notice, and again at once as long as it has more records. It is not read while no task of it may
start.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Hashable
from contextlib import aclosing
from contextvars import Context, copy_context
from functools import partial
from time import monotonic

from stepwell.dispatch import polling
from stepwell.dispatch.sources import RecordSource
from stepwell.record import Address
from stepwell.storage import Storage

__all__ = ["Dispatcher", "dispatcher_of"]

logger: logging.Logger = logging.getLogger(__name__)


def dispatcher_of(storage: Storage) -> Dispatcher:
    """Return the dispatcher of a storage in this process."""
    dispatcher: Dispatcher | None = storage.dispatcher
    if dispatcher is None:
        dispatcher = storage.dispatcher = Dispatcher(storage)
    return dispatcher


class Dispatcher:
    """Serves the sources of one storage. Each address is served by one task at a time."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        #: The started sources in the order of their turns.
        self._sources: deque[RecordSource] = deque()
        self._running: dict[Address, tuple[RecordSource, asyncio.Task[bool]]] = {}
        self._unlisten: dict[RecordSource, list[Callable[[], None]]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._awake = asyncio.Event()
        #: When to ask again whether there is anything to serve, in loop time.
        self._tick_at = 0.0
        #: When all sources were read without an error last, on the monotonic clock.
        self.polled_at: float | None = None

    def start(self, source: RecordSource) -> None:
        """Serve a source from now on. Starting it again has no effect."""
        self._use_loop()
        if source not in self._sources:
            source.hot, source.context = False, copy_context()
            self._sources.append(source)
            self._tick_at = 0.0
            self._unlisten[source] = [
                self._storage.listen(topic, partial(self._wake, source)) for topic in source.topics
            ]
        if self._looking is None or self._looking.done():
            looking = polling.poll(self.look, self._rest, "timers and queues")
            self._looking = asyncio.get_running_loop().create_task(looking, name="stepwell-dispatcher")
        self._awake.set()

    async def stop(self, *sources: RecordSource, timeout: float = 0.0) -> None:
        """Stop serving sources. Wait for their tasks, and cancel them after the timeout, in seconds.

        The record of a cancelled task is either committed or stays due.
        """
        for source in sources:
            if source in self._sources:
                self._sources.remove(source)
            for unlisten in self._unlisten.pop(source, ()):
                unlisten()
        tasks = self._tasks_of(*sources)
        try:
            if not self._sources and self._looking is not None:
                looking, self._looking = self._looking, None
                looking.cancel()
                await asyncio.wait((looking,))
            if timeout and tasks:
                await asyncio.wait(tasks, timeout=timeout)
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            for source in sources:
                await source.close()

    async def serve_all(self, source: RecordSource, addresses: AsyncGenerator[Address, None]) -> int:
        """Serve these records of a source now, and wait for them. Return how many were served."""
        self._use_loop()
        begun: list[asyncio.Task[bool]] = []
        async with aclosing(addresses):
            async for address in addresses:
                while source.room() <= 0 and (tasks := self._tasks_of(source)):
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if not (self._is_busy(address) or source.ignores(address)):
                    begun.append(self._begin(source, address))
        return sum(await asyncio.gather(*begun))

    async def look(self) -> None:
        """Start tasks until no more may start or no source has more records."""
        while True:
            if self._tick_at <= asyncio.get_running_loop().time():
                await self._probe()
            hot = [source for source in self._sources if source.hot and source.room() > 0]
            if not hot:
                self.polled_at = monotonic()
                return
            source = hot[0]
            self._sources.remove(source)
            self._sources.append(source)
            sharing = [other for other in hot if other.limits[0] is source.limits[0]]
            # Rounded up, so that each of them gets one when fewer tasks than sources may start.
            share = -(-source.limits[0].free // len(sharing))
            found = await source.permit(await source.find(min(share, source.room()), self._is_busy))
            self.polled_at = monotonic()
            for address in found:
                # It may have been stopped meanwhile.
                if source in self._sources and not self._is_busy(address):
                    self._begin(source, address, source.context.copy())
                else:
                    source.ended(address, served=False)

    async def _probe(self) -> None:
        """Find out whether the sources that rest have anything to serve."""
        self._tick_at = asyncio.get_running_loop().time() + polling.TICK * self._storage.rng.uniform(0.8, 1.2)
        groups: dict[Hashable, list[RecordSource]] = {}
        for source in self._sources:
            if not source.hot:
                groups.setdefault(source.group, []).append(source)
        for group in groups.values():
            idle = []
            for source in group:
                if source.room() > 0:
                    idle.append(source)
                else:
                    # It is read as soon as one of its tasks may start.
                    source.hot = True
            try:
                # A single source is simply read.
                fresh = len(idle) == 1 or (bool(idle) and await idle[0].any_fresh(idle, self._is_busy))
            except Exception:  # noqa: BLE001 each source is read, which raises again, and the other groups too
                fresh = True
            if fresh:
                for source in idle:
                    source.hot = True

    async def _rest(self, pause: float) -> None:
        """Wait until there may be something to do."""
        if pause:
            await asyncio.sleep(pause * self._storage.rng.uniform(0.8, 1.2))
            return
        loop = asyncio.get_running_loop()
        frees = [source.free_at for source in self._sources if source.free_at > loop.time()]
        timer = loop.call_at(min([self._tick_at, *frees]), self._awake.set)
        try:
            await self._awake.wait()
        finally:
            self._awake.clear()
            timer.cancel()

    def _wake(self, source: RecordSource) -> None:
        source.wake()
        self._awake.set()

    def _is_busy(self, address: Address) -> bool:
        # A task of this process may hold it, without the dispatcher.
        return address in self._running or address in self._storage.waiters

    def _tasks_of(self, *sources: RecordSource) -> list[asyncio.Task[bool]]:
        return [task for source, task in self._running.values() if source in sources]

    def _begin(self, source: RecordSource, address: Address, context: Context | None = None) -> asyncio.Task[bool]:
        for limit in source.limits:
            limit.taken += 1
        name = f"stepwell-{source.what} {address.key}"
        task = asyncio.get_running_loop().create_task(source.serve(address), name=name, context=context)
        self._running[address] = (source, task)
        task.add_done_callback(lambda task: self._ended(source, address, task))
        return task

    def _ended(self, source: RecordSource, address: Address, task: asyncio.Task[bool]) -> None:
        if self._running.get(address, (None, None))[1] is not task:
            # Of a loop that has ended.
            return
        del self._running[address]
        for limit in source.limits:
            limit.taken -= 1
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            logger.error("serving %s at %s failed", source.what, address.text, exc_info=failure)
            source.pauses.add(address)
        source.ended(address, served=failure is None and not task.cancelled() and task.result())
        self._awake.set()

    def _use_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # The tasks of a loop that has ended are gone.
            self._loop, self._looking, self._awake = loop, None, asyncio.Event()
            for source, _ in self._running.values():
                for limit in source.limits:
                    limit.taken -= 1
            self._sources.clear()
            self._running.clear()
