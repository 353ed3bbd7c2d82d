"""The contract of a storage, and the code that all backends share.

A backend implements ``run``, and ``_open`` and ``_close`` of ``Lifecycle`` if it has resources. ``page``, ``due``,
``queued``, ``queues`` and ``sweep`` are optional: they list records, find deadlines and queued records, and remove
expired records. So are ``counts``, ``position``, ``beside`` and ``settings``, which operators need.
"""

from __future__ import annotations

import asyncio
import random
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeAlias

from stepwell.codec import encode_namespace
from stepwell.errors import Unsupported
from stepwell.options import check_number, check_whole
from stepwell.record import KEEP, Address, Limits
from stepwell.storage.base.lifecycle import Lifecycle
from stepwell.storage.base.renewal import Renewals
from stepwell.storage.base.sweeper import ExpiredListener, Sweeper
from stepwell.storage.listing import ANY, Any_, Beside, Due, Entry, Page, Query, StateCount, Swept
from stepwell.storage.operations import Apply, Claim, Operation, Result, check_queue
from stepwell.storage.transport.batch import Batch
from stepwell.storage.transport.lane import Lane
from stepwell.storage.transport.wakeups import Callback, add_listener, check_topic, wake

__all__ = ["RunBatch", "Storage"]


#: Sends a batch, and returns its results.
RunBatch: TypeAlias = Callable[[Batch], Awaitable[list[Result]]]


class Storage(Lifecycle):
    """Keeps records durably and changes them atomically, for any number of concurrent users.

    Obligations of a backend:

    - ``run`` applies a whole batch in one round trip and one commit, in order. Each operation succeeds or fails by
      itself: its result is then an error instance. ``run`` raises only if nothing was applied, or
      ``StorageUnavailable`` if that is unknown.
    - ``run`` returns only after the commit is as durable as the backend promises.
    - Results share no mutable objects with the stored records.
    - All times are compared with one clock, the backend's.

    Example::

        async with open_storage("sqlite:///bot.db") as storage:
            await storage.set_state("my_bot", (42, 42), State("registration", "get_name"))
            async for entry in storage.scan("my_bot"):
                print(entry.key, entry.state.flow)
    """

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        clock: Callable[[], float] | None = None,
        ids: Callable[[], str] | None = None,
        sweep_every: float | None = 60.0,
        patience: float = 10.0,
    ) -> None:
        check_number(sweep_every, "sweep_every must be a number of seconds or None, not {}", above=0, optional=True)
        check_number(patience, "patience must be a number of seconds, not {}", least=0)
        super().__init__(limits=limits, ids=ids)
        #: Seconds since 1970; ``None`` means the server's own clock.
        self.clock: Callable[[], float] | None = clock
        #: For the jitter of delays; tests may seed it.
        self.rng: random.Random = random.Random()
        #: Addresses that this process has released recently. Used by ``slot``.
        self.recently_left: dict[Address, tuple[float, float]] = {}
        #: The ends of the logs that this process has written recently. Used by ``log``.
        self.tails: dict[Address, Any] = {}
        #: Serves what is due and queued. Used by ``dispatch``.
        self.dispatcher: Any = None
        #: The leases that this process holds. Used by ``slot``.
        self.renewals: Renewals = Renewals()
        #: Called with the address and the sealed head of each expired record that the background sweep removes.
        self.expired_listeners: list[ExpiredListener] = []
        can_sweep = type(self).sweep is not Storage.sweep
        self._sweeper = Sweeper(self, sweep_every if can_sweep else None)
        self._patience = patience
        for observer in Storage.observers:
            observer(self)

    #: Called with each new storage, and with the function that sends its batches; see ``observers``.
    observers: ClassVar[list[Callable[[Storage], object]]] = []
    batch_observers: ClassVar[list[Callable[[Storage, RunBatch], RunBatch]]] = []
    #: Whether other processes may use the same records.
    shared: ClassVar[bool] = True

    # Methods of a backend

    @abstractmethod
    async def run(self, operations: Sequence[Operation]) -> list[Result]:
        """Apply these operations in one round trip and one commit; see the obligations above."""

    async def run_within(
        self, connection: Any, operations: Sequence[Operation], *, topic: str | None = None
    ) -> list[Result]:
        """Apply these operations in the transaction that is open on a connection of the caller.

        They take effect with its commit, together with a notice about ``topic``. If one of them is refused, none is
        applied, and the transaction goes on.
        """
        raise Unsupported(type(self).__name__, "write in a transaction of the caller")

    def lane_of(self, operation: Operation) -> Hashable:
        """Return the lane of an operation. A lane batches its operations in order; lanes run concurrently."""
        return None

    async def confirm(self, claim: Claim) -> None:
        """Return once all data that the holder of a claim has read is as durable as an acknowledged write.

        Call it before acknowledging something again because of data that was read, such as the memo of a handled
        update. The default does nothing, for backends whose reads see durable writes only.
        """

    async def page(self, query: Query, after: Any, limit: int) -> Page:
        """Return up to ``limit`` records. A record that exists during the whole scan is listed exactly once."""
        raise Unsupported(type(self).__name__, "list its records")

    def position(self, address: Address) -> Any:
        """Return the position of ``page`` behind an address, which need not have a record."""
        raise Unsupported(type(self).__name__, "continue a list behind a record")

    async def counts(self, *, oldest: bool = False) -> list[StateCount]:
        """Count the records of all namespaces by flow and state, without those that have expired.

        It should take at most 0.3 s for a million records. If exact counts take longer, a state may have only some of
        its records counted, with ``more=True``. With ``oldest``, all counts are exact and have the time of the oldest
        write; this may read every record.
        """
        raise Unsupported(type(self).__name__, "count its records")

    async def beside(self, address: Address) -> Beside:
        """Return the lease and the memo of an address, without a claim."""
        raise Unsupported(type(self).__name__, "read leases")

    async def namespaces(self) -> list[str]:
        """Return all namespaces with records, encoded and sorted; some may have only tombstones left."""
        raise Unsupported(type(self).__name__, "list its namespaces")

    async def traces(self, namespace: str, tag: str, *, limit: int = 500) -> list[Address]:
        """Return the addresses with a tag in an encoded namespace: of records, tombstones and memos."""
        raise Unsupported(type(self).__name__, "find cleared records")

    async def due(
        self,
        namespace: str,
        *,
        before: float | None = None,
        limit: int = 100,
        after: Due | None = None,
        flow: str | Any_ | Sequence[str] | None = ANY,
    ) -> list[Due]:
        """Return records of an encoded namespace with a deadline up to ``before`` (default: now), earliest first.

        ``flow``: only records with this ``Head.flow``, or with one of several; others are not read.
        """
        raise Unsupported(type(self).__name__, "find deadlines")

    async def due_in(self, wanted: Mapping[str, Sequence[str] | Any_], *, limit: int = 100) -> list[Due]:
        """Return the first due records of several encoded namespaces together, earliest first.

        ``wanted``: the flows of each namespace, as in ``due``. A storage on a server needs one round trip for it; this
        one, for others, reads one namespace after the other.
        """
        found = [
            due for namespace, flows in wanted.items() for due in await self.due(namespace, limit=limit, flow=flows)
        ]
        return sorted(found, key=lambda due: due.deadline)[:limit]

    async def queued(self, namespace: str, name: str | Sequence[str], *, limit: int = 100) -> list[Address]:
        """Return the first records of a queue in an encoded namespace, or of several queues together.

        They are ordered by priority (highest first), then by the time of the write that set the queue, then by key.
        Expired records are left out. It reads about as many records as it returns, of each queue.
        """
        raise Unsupported(type(self).__name__, "have queues")

    async def queues(self, namespace: str, *, prefix: str = "", after: str = "", limit: int = 100) -> list[str]:
        """Return the sorted names of queues that have records, begin with ``prefix`` and are greater than ``after``.

        It reads about as many records as it returns names.
        """
        raise Unsupported(type(self).__name__, "have queues")

    async def sweep(self, limit: int = 1000) -> Swept:
        """Remove up to ``limit`` expired records and old tombstones that are not held."""
        raise Unsupported(type(self).__name__, "sweep")

    async def erase(self, *, only_if_quick: bool = False) -> bool:
        """Remove remains of deleted records from the disk, and return whether none are left.

        ``only_if_quick``: do nothing that takes longer than a few tenths of a second. A storage on a server returns
        ``False``, because the server has logs and copies of its own.
        """
        return False

    async def settings(self) -> dict[str, Any]:
        """Return facts about the server or file for ``stepwell doctor``: ``backend``, versions, durability."""
        return {"backend": ""}

    # Wake-ups

    @property
    def wake_key(self) -> Hashable:
        """Identifies the store: storage objects of one process with the same key receive each other's notices."""
        return self

    @property
    def notices_reach_processes(self) -> bool:
        """Whether notices reach all processes that use the store. Otherwise those of other processes must poll."""
        return not self.shared or self._channel is not None

    async def notify(self, topic: str) -> None:
        """Wake the listeners of a topic. Best effort: a notice may be lost, so listeners must poll too.

        ``topic``: at most 200 bytes. It is sent in clear, so it must not contain data.
        """
        check_topic(topic)
        wake(self.wake_key, topic)
        if self._channel is not None:
            # The last notices are sent while the storage closes.
            if self._closing is None and self.loop is not asyncio.get_running_loop():
                await self.ensure_open()
            await self._channel.send(topic)

    def notify_soon(self, topic: str) -> None:
        """Wake the listeners of a topic without waiting for the server.

        ``close()`` waits for the notice, up to a second. It is lost if the event loop ends before that.
        """
        if self._channel is None and type(self).notify is Storage.notify:
            check_topic(topic)
            wake(self.wake_key, topic)
        else:
            self._outbox.send(topic, self.notify)

    def listen(self, topic: str, callback: Callback) -> Callable[[], None]:
        """Call ``callback`` in this event loop after each notice of a topic; return a function that ends this.

        Notices of this process arrive at once. Backends with a server deliver those of other processes too, while the
        storage is open.
        """
        check_topic(topic)
        ended = False

        def call() -> None:
            # A notice may have arrived just before the end.
            if not ended:
                callback()

        def end() -> None:
            nonlocal ended
            ended = True
            for remove in removes:
                remove()

        removes = [add_listener(self.wake_key, topic, call)]
        if self._channel is not None:
            removes.append(self._channel.add(topic, call))
            if self.loop is asyncio.get_running_loop():
                self._channel.start()
        return end

    # Shared by all backends

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """Return a storage for a URL with one of the schemes of this class."""
        raise Unsupported(cls.__name__, "be opened by URL")

    @property
    def location(self) -> str:
        """Where the records are, as a text for people, without secrets."""
        return type(self).__name__

    def perform(self, operation: Operation) -> Coroutine[Any, Any, Any]:
        """Apply one operation, in a batch with those of other tasks, and return its result or raise its error.

        Writes to one address are applied in the order in which they were awaited.
        """
        if type(operation) is Apply and operation.change.queue is not KEEP:
            check_queue(operation.change.queue)
        # Without a running loop, as in run_until_complete(storage.perform(...)), this must not raise yet.
        if self.loop is None or self.loop is not asyncio._get_running_loop():
            return self._open_and_perform(operation)
        name = self.lane_of(operation)
        return (self._lanes.get(name) or self._new_lane(name, self.run)).submit(operation)

    def _new_lane(self, name: Hashable, run: RunBatch) -> Lane:
        for observer in Storage.batch_observers:
            run = observer(self, run)
        lane = self._lanes[name] = self._make_lane(name, run)
        return lane

    def _make_lane(self, name: Hashable, run: RunBatch) -> Lane:
        return Lane(run, ids=self.ids, patience=self._patience)

    async def _open_and_perform(self, operation: Operation) -> Any:
        await self.ensure_open()
        return await Storage.perform(self, operation)

    async def scan(
        self,
        namespace: str,
        *,
        flow: str | Any_ | None = ANY,
        state: str | Any_ | None = ANY,
        tag: str | None = None,
        page: int = 500,
        may_lag: bool = False,
    ) -> AsyncIterator[Entry]:
        """Yield the records of a bot, optionally only those in a flow or state, or with a tag. Not a snapshot.

        ``may_lag``: a replica may answer, without the latest writes, if the storage has the option ``replicas``.
        """
        check_whole(page, "page must be the number of records to read at once, not {}", least=1)
        query = Query(encode_namespace(namespace, self.limits), flow, state, tag, may_lag)
        after: Any = None
        while True:
            if self.loop is not asyncio.get_running_loop():
                await self.ensure_open()
            records, after = await self.page(query, after, page)
            for address, stored in records:
                yield Entry(address, stored, self.seal(address))
            if after is None:
                return
