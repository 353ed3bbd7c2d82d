"""Due timers: their record is claimed, and the owner of the earliest due timer is called by its name."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self, TypeAlias

from stepwell.codec import decode_key
from stepwell.dispatch.dispatcher import dispatcher_of
from stepwell.dispatch.sources import RecordSource, TaskLimit
from stepwell.errors import AlreadyHeld, Busy, StepwellError
from stepwell.record import Address
from stepwell.slot import Slot
from stepwell.storage import ANY, Storage
from stepwell.storage.listing import Any_

__all__ = ["BUSY", "WAKE", "Owner", "TimerSource", "due_records", "serve_timers"]

logger: logging.Logger = logging.getLogger(__name__)

#: What an owner may return: a function to call after the record is released, ``False`` if it does not serve this timer
#: now, or ``None``.
Outcome: TypeAlias = Callable[[], Awaitable[object]] | bool | None
#: Serves a due timer of a held record.
Owner: TypeAlias = Callable[[Slot], Awaitable[Outcome]]
#: The name of a deadline that is no timer: a process that did not hold the record has written it.
WAKE: Final = ""
#: How many due records one read returns.
PAGE = 200
#: The most due records that are read to find out whether there is one to serve.
LONGEST_PROBE = 1000
#: How many timers of a source are served at once.
AT_ONCE = 32
#: Seconds of a lease. Short, so that another process can soon serve the timers of one that died.
LEASE = 1.0
#: Seconds before a timer that could not be served is tried again: the first pause and the longest.
PAUSES = (1.0, 300.0)
#: The same for a record that somebody else holds: tried with each tick, because its holder may have died.
BUSY = (0.25, 0.25)


class TimerSource(RecordSource):
    """The records of a namespace with a timer that is due. See ``serve_timers``."""

    def __init__(
        self,
        storage: Storage,
        namespace: str,
        owners: Mapping[str, Owner],
        *,
        flows: Sequence[str] | Any_ = ANY,
        limits: Sequence[TaskLimit] = (),
        lease: float = LEASE,
        pauses: tuple[float, float] = PAUSES,
        what: str = "timers",
        topics: Sequence[str] = (),
    ) -> None:
        limits = limits or [TaskLimit(AT_ONCE)]
        super().__init__(storage, namespace, limits=limits, pauses=pauses, what=what, topics=topics)
        self.flows: Sequence[str] | Any_ = flows
        self.owners: Mapping[str, Owner] = owners
        self._lease = lease
        #: The present pass through the due records, and the number of wakes at its beginning.
        self._pass: AsyncGenerator[Address, None] | None = None
        self._pass_wakes = 0

    def start(self) -> None:
        """Serve the timers in the background from now on."""
        dispatcher_of(self.storage).start(self)

    async def stop(self, *, timeout: float = 0.0) -> None:
        """Stop, wait for running owners, and cancel them after the timeout, in seconds. Their timers stay due."""
        await dispatcher_of(self.storage).stop(self, timeout=timeout)

    async def __aenter__(self) -> Self:
        await self.storage.open()
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def group(self) -> Hashable:
        """The timers of all namespaces."""
        return TimerSource

    async def any_fresh(self, group: Sequence[Self], busy: Callable[[Address], bool]) -> bool:
        """Read the due records of the group together."""
        sources: dict[str, list[Self]] = {}
        for source in group:
            sources.setdefault(source.namespace, []).append(source)
        ignored = sum(source.limits[0].taken + len(source.pauses) for source in group)
        limit = min(ignored + 1, LONGEST_PROBE)
        found = await self.storage.due_in({name: _flows_of(each) for name, each in sources.items()}, limit=limit)
        if len(found) == LONGEST_PROBE:
            return True
        return any(
            not (busy(due.address) or all(source.ignores(due.address) for source in sources[due.address.namespace]))
            for due in found
        )

    async def find(self, count: int, busy: Callable[[Address], bool]) -> list[Address]:
        """Return the next due records that are not busy. A pass reads all of them, so that none hides another."""
        if self._pass is None:
            self._pass, self._pass_wakes = due_records(self.storage, self.namespace, self.flows), self._wakes
        found: list[Address] = []
        try:
            async for address in self._pass:
                if not (busy(address) or self.ignores(address)):
                    found.append(address)
                    if len(found) == count:
                        return found
        except BaseException:
            self._pass = None
            raise
        self._pass = None
        self._rest(self._pass_wakes)
        return found

    async def close(self) -> None:
        """End the present pass."""
        reading, self._pass = self._pass, None
        if reading is not None:
            # While it is being read, its reader ends it.
            with contextlib.suppress(RuntimeError):
                await reading.aclose()

    async def tick(self) -> int:
        """Serve everything that is due now, and return how many records that were. It need not be started."""
        return await dispatcher_of(self.storage).serve_all(self, due_records(self.storage, self.namespace, self.flows))

    async def serve(self, address: Address) -> bool:
        """Claim a record, and call the owner of a due timer."""
        try:
            outcome = await self._call_owner(address)
            if callable(outcome):
                outcome = await outcome() is not False
        except (Busy, AlreadyHeld):
            self.pauses.add(address, BUSY)
            return False
        except StepwellError as error:
            logger.warning("a timer at %s could not be served and will be retried: %s", address.text, error)
            self.pauses.add(address)
            return False
        except Exception:
            logger.exception("a timer at %s failed and will be retried", address.text)
            self.pauses.add(address)
            return False
        return outcome is not False

    async def _call_owner(self, address: Address) -> Outcome:
        async with Slot(self.storage, self.name, decode_key(address.key), wait=0, lease=self._lease) as slot:
            due = due_timers(slot)
            for name, at in due.items():
                owner = self.owners.get(name)
                outcome = False if owner is None else await owner(slot)
                if outcome is not False:
                    if slot.timers.get(name) == at:
                        # Otherwise a timer that its owner has not moved would be served again and again.
                        self.pauses.add(address)
                    else:
                        self.pauses.remove(address)
                    return outcome
        if due:
            # Another process may own it.
            self.pauses.add(address)
        return False


def _flows_of(sources: Sequence[TimerSource]) -> list[str] | Any_:
    flows: list[str] = []
    for source in sources:
        if isinstance(source.flows, Any_):
            return source.flows
        flows += source.flows
    return flows


def due_timers(slot: Slot) -> dict[str, float]:
    """Return the timers of a held record that are due, the earliest first."""
    due = {name: at for name, at in sorted(slot.timers.items(), key=lambda timer: timer[1]) if at <= slot.now}
    if not due and slot.deadline is not None and slot.deadline <= slot.now:
        due[WAKE] = slot.deadline
    return due


async def due_records(storage: Storage, namespace: str, flows: Sequence[str] | Any_) -> AsyncGenerator[Address, None]:
    """Yield all due records of some flows in an encoded namespace."""
    last = None
    while True:
        page = await storage.due(namespace, flow=flows, limit=PAGE, after=last)
        addresses = [due.address for due in page]
        # Processes that read the same page start at different records.
        storage.rng.shuffle(addresses)
        for address in addresses:
            yield address
        if len(page) < PAGE:
            return
        last = page[-1]


def serve_timers(
    storage: Storage,
    namespace: str,
    owners: Mapping[str, Owner],
    *,
    flows: Sequence[str] | Any_ = ANY,
    lease: float = LEASE,
    concurrency: int = AT_ONCE,
    topics: Sequence[str] = (),
    what: str = "timers",
) -> TimerSource:
    """Return a block that serves the due timers of a namespace: ``async with serve_timers(...):``.

    It reads the records of the namespace, or those of some flows, whose earliest timer is due. Each is claimed, and the
    owner of its earliest due timer is called with the held :class:`Slot`. The owner changes the record, removes or
    moves its timer, and calls ``await slot.commit()``. It runs again for a timer that is still due, after a pause that
    grows to five minutes, and so does an owner that raises. What must happen after the release, such as sending what
    was committed, is a function that the owner returns. An owner that returns ``False`` leaves the timer to another
    process, and a timer without an owner waits for one.

    Every process may serve the same timers: one of them claims a record, and the others find the timer moved. If it
    dies, another one calls the owner after the lease, so an owner may run twice, but its commit counts once.

    ``topics``: notices after which it looks at once. ``what``: names its tasks.

    Example::

        async def done(slot):
            slot.state, slot.timers = "done", {}
            await slot.commit()

        timers: TimerSource = serve_timers(storage, "kitchen", {"done": done})
        async with timers:
            assert await timers.tick() == 0
    """
    return TimerSource(
        storage, namespace, owners, flows=flows, lease=lease, limits=[TaskLimit(concurrency)], topics=topics, what=what
    )
