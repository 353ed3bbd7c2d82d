"""What a storage must do, and all that is written once on top of it.

A backend writes ``run``; ``open`` and ``close`` come through ``_open`` and ``_close``. Listing records,
finding deadlines and sweeping are optional: ``page``, ``due`` and ``sweep``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import weakref
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Sequence
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Self

from stepwell.codec import Seal, decode_key, decode_namespace, encode_namespace
from stepwell.errors import InvalidOption, StorageClosed, Unsupported, WrongLoop
from stepwell.record import Address, Limits, Place, State, Stored, Version
from stepwell.storage.facade import Facade
from stepwell.storage.lane import Batch, Lane, retrieve
from stepwell.storage.operations import Claim, Operation, Result
from stepwell.storage.renewal import Renewals

__all__ = ["ANY", "Any_", "Due", "Entry", "Page", "Query", "Storage", "Swept"]

logger = logging.getLogger(__name__)


class Any_:  # noqa: N801 the type of a constant
    """The type of ``ANY``."""

    def __repr__(self) -> str:
        return "ANY"


#: Whatever flow or state; ``None`` means that there is none.
ANY = Any_()


class Query(NamedTuple):
    """Which records a page lists. Names are encoded; expired records and tombstones are never listed."""

    namespace: str
    flow: str | Any_ | None = ANY
    state: str | Any_ | None = ANY
    tag: str | None = None


class Page(NamedTuple):
    """Some records, and where to go on; ``None`` at the end."""

    records: list[tuple[Address, Stored]]
    after: Any


class Due(NamedTuple):
    """A record whose deadline has come."""

    address: Address
    deadline: float


class Swept(NamedTuple):
    """What one sweep removed."""

    #: Address and sealed head of each record that had expired.
    expired: list[tuple[Address, str | None]]
    #: All removals, tombstones, memos and leftover leases included. As many as the limit: there may be more.
    removed: int


class Entry:
    """One record of a scan. Reading ``state`` decodes it, and raises if it is damaged."""

    __slots__ = ("_seal", "_stored", "address")

    def __init__(self, address: Address, stored: Stored, seal: Seal) -> None:
        self.address = address
        self._stored = stored
        self._seal = seal

    def __repr__(self) -> str:
        # No data: it may be anybody's secret.
        return f"Entry({self.address.text})"

    @property
    def key(self) -> Any:
        """The key as it was given."""
        return decode_key(self.address.key)

    @property
    def namespace(self) -> str:
        """The bot's name."""
        return decode_namespace(self.address.namespace)

    @property
    def state(self) -> State:
        """The record."""
        return State(self.place.flow, self.place.state, self._seal.data(self._stored.fields))

    @property
    def place(self) -> Place:
        """Flow, state, revision, history and waiting flows."""
        return self._seal.open_head(self._stored.head)

    @property
    def version(self) -> Version:
        """The version to guard an edit with."""
        return self._stored.version

    @property
    def written_at(self) -> float:
        """When it was last written, in seconds since 1970 on the backend's clock."""
        return self._stored.written_at

    @property
    def expires_at(self) -> float | None:
        """When it expires."""
        return self._stored.expires_at

    @property
    def deadline(self) -> float | None:
        """When its timer is due."""
        return self._stored.deadline

    @property
    def tags(self) -> tuple[str, ...]:
        """The people and chats it belongs to."""
        return self._stored.tags


class Storage(Facade):
    """Keeps records durably and changes them atomically; safe under concurrency across all its users.

    Obligations of a backend:

    - ``run`` makes a whole batch in one round trip and one commit, in order; each operation succeeds or
      fails by itself, as an error instance in its place. It raises only if nothing was applied, or
      ``StorageUnavailable`` if it cannot know.
    - A result leaves only after its commit is as durable as the backend promises.
    - What it gives back shares nothing mutable with what it keeps.
    - Times are judged by one clock, the backend's.
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
        if sweep_every is not None and sweep_every <= 0:
            raise InvalidOption(f"sweep_every is a number of seconds or None, not {sweep_every!r}")
        if patience < 0:
            raise InvalidOption(f"patience is a number of seconds, not {patience!r}")
        super().__init__(limits=limits, ids=ids)
        #: Seconds since 1970; ``None`` means the server's own clock.
        self.clock = clock
        #: For the jitter of pauses; tests may seed it.
        self.rng = random.Random()
        #: Who waits for which address in this process; kept by ``slot``.
        self.lines: dict[Address, Any] = {}
        #: Addresses that this process has left lately; kept by ``slot``.
        self.left_lines: dict[Address, tuple[float, float]] = {}
        #: Who holds which lease in this process; kept by ``slot``.
        self.renewals = Renewals()
        #: Called with address and sealed head of each expired record that the background sweep removed.
        self.expired_listeners: list[Callable[[Address, str | None], Awaitable[Any]]] = []
        self._sweep_every = sweep_every
        self._patience = patience
        self._loop: asyncio.AbstractEventLoop | None = None
        #: The process that opened it.
        self._process = 0
        #: ``close()`` was called, and not ``open()`` since.
        self._closed = False
        self._opening: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._lanes: dict[Hashable, Lane] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._sweeping: asyncio.Task[None] | None = None

    #: Other processes may use the same records.
    shared: ClassVar[bool] = True

    # What a backend writes

    @abstractmethod
    async def run(self, operations: Sequence[Operation]) -> list[Result]:
        """Make these operations in one round trip and one commit; see the obligations above."""

    async def _open(self) -> None:
        """Connect and prepare. Called once before the first ``run``."""

    async def _close(self) -> None:
        """Give back what ``_open`` took."""

    def lane_of(self, operation: Operation) -> Hashable:
        """Operations of one lane share batches, in order; lanes run side by side."""
        return None

    async def confirm(self, claim: Claim) -> None:
        """Return once everything that the holder of a claim has read is as durable as an acknowledged write.

        A read that repeats an acknowledgement, such as the memo of a handled update, needs this first. The default
        does nothing: it suits a backend whose reads only see durable writes.
        """

    async def page(self, query: Query, after: Any, limit: int) -> Page:
        """Up to ``limit`` records; one that is there during the whole scan is listed exactly once."""
        raise Unsupported(type(self).__name__, "list its records")

    async def namespaces(self) -> list[str]:
        """Every namespace that has something in it, encoded, in order; one with only leftovers may be among them."""
        raise Unsupported(type(self).__name__, "list its namespaces")

    async def traces(self, namespace: str, tag: str, *, limit: int = 500) -> list[Address]:
        """Addresses of an encoded namespace with a tag: records, and what is left of them for a day."""
        raise Unsupported(type(self).__name__, "find what was cleared")

    async def due(
        self, namespace: str, *, before: float | None = None, limit: int = 100, after: Due | None = None
    ) -> list[Due]:
        """Records of an encoded namespace whose deadline is not after ``before`` (default: now), earliest first."""
        raise Unsupported(type(self).__name__, "find deadlines")

    async def sweep(self, limit: int = 1000) -> Swept:
        """Remove up to ``limit`` expired records and old tombstones that nobody holds."""
        raise Unsupported(type(self).__name__, "sweep")

    async def erase(self, *, only_if_quick: bool = False) -> bool:
        """Remove from the disk what removed records have left there; whether nothing is left.

        ``only_if_quick``: do nothing that takes longer than some tenths of a second. A storage on a server returns
        ``False``: the server has logs and copies of its own.
        """
        return False

    # What is the same for all

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """A storage for a URL of one of the schemes that this class is registered for."""
        raise Unsupported(cls.__name__, "be opened by URL")

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that it is open in."""
        return self._loop

    @property
    def is_open(self) -> bool:
        """It was opened, and not closed since."""
        return self._loop is not None

    async def open(self) -> None:
        """Connect and prepare. Any number of calls do it once.

        The first operation opens a new storage too. After ``close()`` only this method opens it again.
        """
        loop = asyncio.get_running_loop()
        self._closed = False
        while self._loop is not loop:
            under_way = self._closing or self._opening
            if self._loop is not None and self._process != os.getpid():
                raise WrongLoop(forked=True)
            if under_way is not None and under_way.get_loop().is_closed():
                self._closing = self._opening = under_way = None
            owner = self._loop if under_way is None else under_way.get_loop()
            if owner is not None and owner is not loop and not owner.is_closed():
                raise WrongLoop
            if under_way is None:
                under_way = self._opening = loop.create_task(self._begin(), name="stepwell-open")
                under_way.add_done_callback(retrieve)
            # One caller's cancellation must not break it for the others.
            await asyncio.shield(under_way)
            if self._closed:
                raise StorageClosed

    async def ensure_open(self) -> None:
        """Open the storage for an operation, unless it was closed: then raise ``StorageClosed``."""
        if self._closed:
            raise StorageClosed
        await self.open()

    def allow_reopen(self) -> None:
        """Let the next use open the storage after a ``close()``, as if it were new."""
        self._closed = False

    async def _begin(self) -> None:
        try:
            if self._loop is not None:
                # The loop that opened it is closed, and took its tasks along.
                self._loop, self._sweeping, self._lanes = None, None, {}
                self.lines.clear()
                await self._close()
            await self._open()
            self._loop, self._process = asyncio.get_running_loop(), os.getpid()
            self._plan_sweep()
        finally:
            self._opening = None

    async def close(self) -> None:
        """Finish what is under way and let go of connections, threads and files. Any number of calls do it once.

        Every use after this raises ``StorageClosed``, until ``open()`` or ``async with`` opens it again.
        """
        loop = asyncio.get_running_loop()
        for owner in (self._loop, *(task.get_loop() for task in (self._opening, self._closing) if task is not None)):
            if owner is not None and owner is not loop and not owner.is_closed():
                raise WrongLoop
        self._closed = True
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self._closing is None and self._loop is not None:
            self._closing = loop.create_task(self._end(), name="stepwell-close")
            self._closing.add_done_callback(retrieve)
        if self._closing is not None:
            await asyncio.shield(self._closing)

    async def _end(self) -> None:
        try:
            self._loop = None
            if self._sweeper is not None:
                self._sweeper.cancel()
            if self._sweeping is not None:
                self._sweeping.cancel()
                await asyncio.wait([self._sweeping])
            lanes, self._lanes = self._lanes, {}
            for lane in lanes.values():
                await lane.close()
            await self._close()
        finally:
            self._closing = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def perform(self, operation: Operation) -> Coroutine[Any, Any, Any]:
        """Make one operation, gathered with what other tasks ask for; its error is raised.

        Writes to one address are made in the order in which they were awaited.
        """
        # Called without a loop, as for run_until_complete(), this must not raise yet.
        if self._loop is None or self._loop is not asyncio._get_running_loop():
            return self._open_and_perform(operation)
        name = self.lane_of(operation)
        return (self._lanes.get(name) or self._new_lane(name, self._run_batch)).submit(operation)

    def _new_lane(self, name: Hashable, run: Callable[[Batch], Awaitable[list[Result]]]) -> Lane:
        lane = self._lanes[name] = Lane(run, ids=self.ids, patience=self._patience)
        return lane

    async def _open_and_perform(self, operation: Operation) -> Any:
        await self.ensure_open()
        return await Storage.perform(self, operation)

    async def _run_batch(self, batch: Batch) -> list[Result]:
        return await self.run(batch)

    async def scan(
        self,
        namespace: str,
        *,
        flow: str | Any_ | None = ANY,
        state: str | Any_ | None = ANY,
        tag: str | None = None,
        page: int = 500,
    ) -> AsyncIterator[Entry]:
        """All records of a bot, or those in a flow or state, or with a tag. Not a snapshot."""
        if page < 1:
            raise InvalidOption(f"page is the number of records to read at once, not {page!r}")
        query = Query(encode_namespace(namespace, self.limits), flow, state, tag)
        after: Any = None
        while True:
            if self._loop is not asyncio.get_running_loop():
                await self.ensure_open()
            records, after = await self.page(query, after, page)
            for address, stored in records:
                yield Entry(address, stored, self.seal(address))
            if after is None:
                return

    # Sweeping in the background

    def _plan_sweep(self) -> None:
        if self._sweep_every is not None and type(self).sweep is not Storage.sweep and self._loop is not None:
            # Weakly: a timer must not keep a storage alive that everybody else has let go of.
            self._sweeper = self._loop.call_later(self._sweep_every, _call, weakref.WeakMethod(self._start_sweep))

    def _start_sweep(self) -> None:
        if self._loop is not None:
            self._sweeping = self._loop.create_task(self._sweep_all(), name="stepwell-sweep")

    async def _sweep_all(self, limit: int = 500) -> None:
        try:
            while True:
                swept = await self.sweep(limit)
                await self._tell_expired(swept)
                if swept.removed < limit:
                    break
                # Sweeping is nobody's hurry: let everybody else go first.
                await asyncio.sleep(0.05)
        except StorageClosed:
            return
        except Exception:
            logger.exception("sweeping failed; it is tried again in %s s", self._sweep_every)
        finally:
            self._sweeping = None
        self._plan_sweep()

    async def _tell_expired(self, swept: Swept) -> None:
        for address, head in swept.expired:
            for listener in self.expired_listeners:
                try:
                    await listener(address, head)
                except Exception:
                    logger.exception("a listener for expired records failed")


def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    start = method()
    if start is not None:
        start()
