"""A server with records in a simulation, which the storages of its processes reach over a simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

from stepwell.errors import StepwellError, StorageUnavailable
from stepwell.record import Address, Limits
from stepwell.storage import MemoryStorage, Operation, Result, Storage
from stepwell.storage.listing import ANY, Any_, Beside, Due, Page, Query, StateCount, Swept
from stepwell.storage.transport.batch import Batch
from stepwell.storage.transport.lane import Lane
from stepwell.storage.transport.notices import NoticeChannel
from stepwell.storage.transport.reads import read_again
from stepwell.testing.simulated_loop import SimulatedLoop, SimulatedProcess, current_process

if TYPE_CHECKING:
    from stepwell.testing.simulation import Simulation

__all__ = ["NETWORK_FAULTS", "SimulatedStore"]

#: What can happen to a request: it is not sent; it is lost; its answer is lost; it arrives late, after the connection
#: has broken; it or its answer is slow; no answer comes, and the client gives up.
NETWORK_FAULTS: Final = ("unsent", "lost request", "lost answer", "late", "slow", "silent")
#: Seconds that a request or an answer takes.
DELAY: Final = 0.002
#: Seconds after which a client learns that its connection has broken.
BREAKS: Final = 0.05
#: Seconds that a slow request or answer takes, that a late one is late, and after which a client gives up, at most.
SLOW: Final = 2.0
LATE: Final = 4.0
TIMEOUT: Final = 5.0


class SimulatedStore:
    """Records that all processes of a simulation share, on a server with its own clock.

    ``storage()`` returns the storage of the process that calls it. Its calls take a short random time, notices too.
    ``fault(process, number)`` is called with each request to the server, and with its number in this process, from 1.
    It returns what happens to it: one of ``NETWORK_FAULTS``, or ``None``.

    Example::

        from stepwell.testing.simulation import Simulation
        from stepwell.testing.simulated_store import SimulatedStore

        async def bot(store):
            async with store.storage() as storage:
                await storage.set_data("bot", 42, {"name": "Ann"})

        async def main(simulation):
            store = SimulatedStore(simulation, fault=lambda process, number: "lost answer" if number == 1 else None)
            await simulation.process("one").start(bot(store))
            async with store.storage() as storage:
                assert await storage.get_data("bot", 42) == {"name": "Ann"}

        simulation = Simulation(seed=1)
        simulation.run(main(simulation))
    """

    def __init__(
        self,
        simulation: Simulation,
        *,
        fault: Callable[[SimulatedProcess | None, int], str | None] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.simulation: Simulation = simulation
        self.fault: Callable[[SimulatedProcess | None, int], str | None] | None = fault
        #: The records. Reading them here takes no time, and is part of no process.
        self.memory: MemoryStorage = MemoryStorage(limits=limits, clock=self.time, sweep_every=None)
        #: Called with the process and the operations of each batch that the server gets.
        self.watchers: list[Callable[[SimulatedProcess | None, Sequence[Operation], list[Result]], object]] = []
        self._loop: SimulatedLoop = simulation.loop
        self._journals: dict[str, tuple[int, list[Result]]] = {}
        self._numbers: dict[SimulatedProcess | None, int] = {}
        self._subscribers: list[asyncio.Queue[str]] = []

    def time(self) -> float:
        """Return the time of the server's clock."""
        return self.simulation.start + self._loop.time()

    def storage(self, **options: Any) -> Storage:
        """Return a storage of the current process; the options are those of every storage."""
        return _SimulatedStorage(self, **{"limits": self.memory.limits, **options})

    # The network

    async def _exchange(self, what: Callable[[], Any]) -> Any:
        """Let the server do something, and return its answer, unless the connection breaks."""
        process, loop, random = current_process.get(), self._loop, self.simulation.random
        number = self._numbers[process] = self._numbers.get(process, 0) + 1
        fault = None if self.fault is None else self.fault(process, number)
        if fault is not None:
            self.simulation.note("network", f"{fault}: request {number} of {_name_of(process)}")
        if fault == "unsent":
            await asyncio.sleep(random.random() * BREAKS)
            raise StorageUnavailable("the connection broke before sending", sent=False)
        answer: asyncio.Future[Any] = loop.create_future()
        there, back = random.random() * DELAY, random.random() * DELAY
        if fault == "slow":
            there += random.random() * SLOW
            back += random.random() * SLOW
        elif fault == "late":
            there += random.random() * LATE

        def arrive() -> None:
            result = what()
            if fault not in ("lost answer", "late", "silent"):
                loop.call_later(back, _deliver, answer, result, context=Context())

        # The request is on its way, whatever becomes of the process.
        if fault != "lost request":
            loop.call_later(there, arrive, context=Context())
        if fault in ("lost request", "lost answer", "late", "silent"):
            await asyncio.sleep(there + BREAKS if fault == "lost answer" else TIMEOUT if fault == "silent" else BREAKS)
            raise StorageUnavailable("the connection broke before the answer", sent=True)
        result = await answer
        if isinstance(result, Exception):
            raise result
        return result

    def _apply(self, process: SimulatedProcess | None, operations: Sequence[Operation]) -> list[Result] | Exception:
        """Apply a batch, unless its lane has sent it before."""
        if isinstance(operations, Batch):
            number, results = self._journals.get(operations.lane, (0, []))
            if operations.number < number:
                return StepwellError("a batch arrived late and was refused")
            if operations.number == number:
                return results
        results = [self.memory._do(operation) for operation in operations]
        if isinstance(operations, Batch):
            self._journals[operations.lane] = operations.number, results
        for watcher in self.watchers:
            watcher(process, operations, results)
        return results

    def _read(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Return the result of a read of ``memory``, which waits for nothing."""
        try:
            call.send(None)
        except StopIteration as done:
            return done.value
        except StepwellError as error:
            return error
        raise AssertionError("a read of the memory waits")

    # Notices

    def _subscribe(self) -> asyncio.Queue[str]:
        """Return a queue that gets all notices from now on."""
        queue: asyncio.Queue[str] = asyncio.Queue()
        self._subscribers.append(queue)
        return queue

    def _unsubscribe(self, queue: asyncio.Queue[str]) -> None:
        """End a subscription."""
        self._subscribers.remove(queue)

    def _publish(self, payload: str) -> None:
        """Send a notice to all subscribers."""
        for queue in self._subscribers:
            delay = self.simulation.random.random() * DELAY
            self._loop.call_later(delay, queue.put_nowait, payload, context=Context())


def _name_of(process: SimulatedProcess | None) -> str:
    return "the test" if process is None else process.name


def _deliver(answer: asyncio.Future[Any], result: Any) -> None:
    if not answer.done():
        answer.set_result(result)


class _SimulatedStorage(Storage):
    """The storage of one process: the lanes and notices are those of every storage on a server."""

    def __init__(self, store: SimulatedStore, **options: Any) -> None:
        super().__init__(**options)
        self._store = store
        self._channel = _SimulatedChannel(store)

    def _make_lane(self, name: Any, run: Any) -> Lane:
        return Lane(run, ids=self.ids, patience=self._patience, clock=self._store.simulation.loop.time)

    @property
    def location(self) -> str:
        return "a simulated server"

    async def run(self, operations: Sequence[Operation]) -> list[Result]:
        process, store = current_process.get(), self._store
        results: list[Result] = await store._exchange(lambda: store._apply(process, operations))
        return results

    async def _read(self, method: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **options: Any) -> Any:
        if self.loop is not asyncio.get_running_loop():
            await self.ensure_open()
        return await read_again(lambda: self._store._exchange(lambda: self._store._read(method(*args, **options))))

    async def page(self, query: Query, after: Any, limit: int) -> Page:
        page: Page = await self._read(self._store.memory.page, query, after, limit)
        return page

    def position(self, address: Address) -> Any:
        return address

    async def counts(self, *, oldest: bool = False) -> list[StateCount]:
        counts: list[StateCount] = await self._read(self._store.memory.counts, oldest=oldest)
        return counts

    async def beside(self, address: Address) -> Beside:
        beside: Beside = await self._read(self._store.memory.beside, address)
        return beside

    async def namespaces(self) -> list[str]:
        names: list[str] = await self._read(self._store.memory.namespaces)
        return names

    async def traces(self, namespace: str, tag: str, *, limit: int = 500) -> list[Address]:
        found: list[Address] = await self._read(self._store.memory.traces, namespace, tag, limit=limit)
        return found

    async def due(
        self,
        namespace: str,
        *,
        before: float | None = None,
        limit: int = 100,
        after: Due | None = None,
        flow: str | Any_ | Sequence[str] | None = ANY,
    ) -> list[Due]:
        found: list[Due] = await self._read(
            self._store.memory.due, namespace, before=before, limit=limit, after=after, flow=flow
        )
        return found

    async def due_in(self, wanted: Mapping[str, Sequence[str] | Any_], *, limit: int = 100) -> list[Due]:
        found: list[Due] = await self._read(self._store.memory.due_in, wanted, limit=limit)
        return found

    async def queued(self, namespace: str, name: str | Sequence[str], *, limit: int = 100) -> list[Address]:
        found: list[Address] = await self._read(self._store.memory.queued, namespace, name, limit=limit)
        return found

    async def queues(self, namespace: str, *, prefix: str = "", after: str = "", limit: int = 100) -> list[str]:
        found: list[str] = await self._read(
            self._store.memory.queues, namespace, prefix=prefix, after=after, limit=limit
        )
        return found

    async def sweep(self, limit: int = 1000) -> Swept:
        swept: Swept = await self._read(self._store.memory.sweep, limit)
        return swept


class _SimulatedChannel(NoticeChannel):
    """Notices over the simulated server."""

    def __init__(self, store: SimulatedStore) -> None:
        super().__init__()
        self._store = store

    async def _send(self, payload: str) -> None:
        await self._store._exchange(lambda: self._store._publish(payload))

    async def _receive(self) -> str:
        queue = await self._store._exchange(self._store._subscribe)
        try:
            self._begin()
            while True:
                self._received(await queue.get())
        finally:
            self._store._unsubscribe(queue)
