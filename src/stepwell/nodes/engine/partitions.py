"""Partitions of queues: runs of one partition run one after the other, in the order of their queue.

A lock record for each partition names the run that has it. The waiting runs are in a queue of the partition. The first
of them has a deadline, by which workers find it; the others have none. After the end of a run the next one gets a
deadline. Workers repair partitions whose next run has none, because a process was killed between two writes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from stepwell.codec.keys import check_name, decode_key, encode_key
from stepwell.codec.large import open_data
from stepwell.errors import (
    AlreadyHeld,
    Busy,
    InvalidOption,
    LeaseLost,
    RecordExists,
    RunBusy,
    StepwellError,
    StoredDataError,
    VersionChanged,
)
from stepwell.nodes.engine import lease
from stepwell.nodes.engine.notices import wake_workers
from stepwell.nodes.engine.run_format import flow_index, table_of
from stepwell.record import PARTITIONS, RUNS, Address, Change, Queue, Stored
from stepwell.slot import Slot
from stepwell.storage.operations import Apply, Get, Guard, check_queue

if TYPE_CHECKING:
    from stepwell.storage import Storage

__all__ = ["Repairs", "acquire", "activate_if_first", "encode", "following", "queue_name", "release"]

logger: logging.Logger = logging.getLogger(__name__)

#: The statuses in which a run keeps its partition.
HOLDING = frozenset({"running", "parked", "sleeping"})
#: The same for the run that its lock names, which may be about to start.
HOLDS = HOLDING | {"queued"}
#: The statuses of runs that have left their partition, and get it again when they are resumed.
RESUMABLE = frozenset({"paused", "failed", "stuck"})
#: How often a write is tried again after another writer was faster.
ATTEMPTS = 10
#: The most partitions of a flow that are checked at once.
AT_ONCE = 200
#: Seconds after which a waiting run that no worker has started may be damaged.
OVERDUE = 10.0


def encode(partition: str | int) -> str:
    """Return a partition as text; raise ``InvalidOption`` unless it is a non-empty str or an int."""
    if type(partition) is not int and not (isinstance(partition, str) and partition):
        raise InvalidOption(f"partition={partition!r}: give a non-empty str or an int, or None")
    check_name("the partition", partition)
    return encode_key(partition)


def queue_name(index: str, partition: str) -> str:
    """Return the name of a partition's queue; ``index`` is the index text of a revision of the flow."""
    name = queue_prefix(index) + partition
    check_queue(Queue(name))
    return name


def queue_prefix(index: str) -> str:
    """Return how the names of all queues of partitions of a flow begin."""
    # Names of flows have no "/".
    return f"{index}/"


async def acquire(slot: Slot, flow_id: str, flow: str, revision: int, table: dict[str, Any]) -> None:
    """Give a run its partition. If another run has it or is before it, release the slot and raise ``RunBusy``."""
    storage, partition = slot.storage, table["partition"]
    queued = table["status"] == "queued"
    if queued and slot.queue is None:
        # Its delay has ended, so it enters the queue.
        queue = Queue(queue_name(flow_index(flow, revision), partition), table.get("priority", 0))
        await slot.commit(keep=True, queue=queue, force=True)
    lock = storage.address(PARTITIONS, (flow, partition))
    while True:
        stored: Stored | None = await storage.perform(Get(lock))
        holder = _named(storage, lock, stored)
        if holder == flow_id:
            # An earlier runner was killed before it could start the run.
            return
        async with _unresumed(storage, holder, partition) as has_it:
            before = has_it
            if before is None and queued:
                first = await _first_readable(storage, flow, revision, partition, slot.address)
                if first is None:
                    # Another runner has started this run, because the lease here has ended.
                    raise LeaseLost(slot.address.text)
                before = None if first == slot.address else first
            if before is None:
                seal = storage.seal(lock)
                change = Change(write=storage.ids(), set=seal.fields({"run": flow_id}), limit=seal.limit)
                try:
                    guard = Guard(absent=True) if stored is None else Guard(version=stored.version)
                    await storage.perform(Apply(lock, change, guard))
                except (RecordExists, VersionChanged):
                    continue
                return
        await _step_back(slot, queued)
        await _activate(storage, before)
        raise RunBusy(flow_id, 0.0, partition=partition)


async def release(storage: Storage, flow: str, revision: int, partition: str, flow_id: str) -> None:
    """Let the next run of a partition start, after the end of a run. Best effort: workers repair partitions."""
    try:
        for _ in range(ATTEMPTS):
            first = await _first(storage, flow, revision, partition)
            if first is None:
                break
            # Written even if it has a deadline: a worker that has taken it too early is about to remove that.
            if await _activate(storage, first[0], always=True):
                wake_workers(storage, first[1])
                return
        lock = storage.address(PARTITIONS, (flow, partition))
        stored: Stored | None = await storage.perform(Get(lock))
        if stored is not None and _named(storage, lock, stored) == flow_id:
            # If a run has got the partition meanwhile, the version has changed.
            change = Change(write=storage.ids(), delete=True, forget=True)
            await storage.perform(Apply(lock, change, Guard(version=stored.version)))
    except VersionChanged:
        pass
    except StepwellError as error:
        logger.warning("the next run of partition %s could not be started yet: %s", partition, error)


async def activate_if_first(storage: Storage, name: str, address: Address) -> None:
    """Give a run of a partition a deadline if it is the first of its queue."""
    if await storage.queued(RUNS, name, limit=1) == [address]:
        await _activate(storage, address)


async def following(storage: Storage, flow: str, revision: int, flow_id: str) -> str | None:
    """Return the id of the first waiting run of the partition of a run, or ``None``."""
    address = storage.address(RUNS, flow_id)
    stored: Stored | None = await storage.perform(Get(address))
    table = None if stored is None else table_of(await storage.read_place(address, stored), address)
    if table is None or "partition" not in table:
        return None
    first = await _first(storage, flow, revision, table["partition"])
    return None if first is None else str(decode_key(first[0].key))


class Repairs:
    """Finds partitions whose next run nothing else will start, and starts it: up to ``AT_ONCE`` of a flow at a time."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        #: The last queue that was checked, by the prefix of its name.
        self._last: dict[str, str] = {}

    async def check(self, flow: str, revision: int) -> None:
        """Check the next partitions of a flow, in all its revisions."""
        for each in range(1, revision + 1):
            prefix = queue_prefix(flow_index(flow, each))
            after = self._last.get(prefix, "")
            names = await self._storage.queues(RUNS, prefix=prefix, after=after, limit=AT_ONCE)
            self._last[prefix] = names[-1] if len(names) == AT_ONCE else ""
            repairs = (_repair(self._storage, flow, name, name.removeprefix(prefix)) for name in names)
            for problem in await asyncio.gather(*repairs, return_exceptions=True):
                if isinstance(problem, BaseException):
                    raise problem


async def _repair(storage: Storage, flow: str, name: str, partition: str) -> None:
    first = await _readable_of(storage, name)
    stored: Stored | None = None if first is None else await storage.perform(Get(first))
    if first is None or stored is None or stored.deadline is not None:
        return
    lock = storage.address(PARTITIONS, (flow, partition))
    locked: Stored | None = await storage.perform(Get(lock))
    holder = _named(storage, lock, locked)
    before = None if holder is None else await _holder(storage, holder, partition)
    if before in (None, first):
        await _activate(storage, first)


async def _first(storage: Storage, flow: str, revision: int, partition: str) -> tuple[Address, str] | None:
    """Return the first waiting run of a partition and its index text; older revisions come first."""
    for each in range(1, revision + 1):
        index = flow_index(flow, each)
        for address in await storage.queued(RUNS, queue_name(index, partition), limit=1):
            return address, index
    return None


async def _first_readable(storage: Storage, flow: str, revision: int, partition: str, own: Address) -> Address | None:
    """Return the first waiting run of a partition that is ``own`` or can be read; older revisions come first."""
    for each in range(1, revision + 1):
        first = await _readable_of(storage, queue_name(flow_index(flow, each), partition), own)
        if first is not None:
            return first
    return None


async def _readable_of(storage: Storage, name: str, own: Address | None = None) -> Address | None:
    """Return the first run of a queue that is ``own`` or can be read. Damaged runs must not stop those behind them."""
    looked, limit = 0, 1
    while True:
        found = await storage.queued(RUNS, name, limit=limit)
        for address in found[looked:]:
            if address == own or await _is_readable(storage, address):
                return address
        if len(found) < limit:
            return None
        looked, limit = len(found), 4 * limit


async def _is_readable(storage: Storage, address: Address) -> bool:
    stored: Stored | None = await storage.perform(Get(address))
    if stored is None:
        return False
    try:
        table_of(await storage.read_place(address, stored), address)
        overdue = 0.0 if stored.deadline is None else (storage.clock or time.time)() - stored.deadline
        if overdue > OVERDUE:
            # Workers do not start it. Its data may be the reason.
            await open_data(storage.seal(address), stored.fields)
    except StoredDataError:
        return False
    return True


def _named(storage: Storage, lock: Address, stored: Stored | None) -> str | None:
    """Return the run that a lock names."""
    if stored is None:
        return None
    try:
        run: str | None = storage.seal(lock).data(stored.fields).get("run")
    except StoredDataError as error:
        logger.warning("a lock record is damaged, so its partition counts as free: %s", error)
        return None
    return run


async def _holder(storage: Storage, flow_id: str, partition: str) -> Address | None:
    """Return the address of the run that a lock names if the run still has its partition, or will start with it."""
    return storage.address(RUNS, flow_id) if await _status(storage, flow_id, partition) in HOLDS else None


async def _status(storage: Storage, flow_id: str, partition: str) -> str | None:
    """Return the status of a run of a partition; ``None`` if there is none, or if its delay has not ended."""
    address = storage.address(RUNS, flow_id)
    stored: Stored | None = await storage.perform(Get(address))
    if stored is None:
        return None
    try:
        table = table_of(await storage.read_place(address, stored), address)
    except StepwellError as error:
        logger.warning("run %r cannot be read, so it loses its partition: %s", flow_id, error)
        return None
    if table is None or table.get("partition") != partition:
        return None
    return None if table["status"] == "queued" and stored.queue is None else str(table["status"])


@asynccontextmanager
async def _unresumed(storage: Storage, holder: str | None, partition: str) -> AsyncIterator[Address | None]:
    """Yield the address of the run that has a partition, or ``None``; in the latter case it is not resumed meanwhile.

    A run that is paused or has failed does not have its partition, until ``flow.resume()`` continues it.
    """
    if holder is None:
        yield None
        return
    address = storage.address(RUNS, holder)
    async with AsyncExitStack() as stack:
        status = await _status(storage, holder, partition)
        if status in RESUMABLE:
            try:
                # Nothing resumes this run while the next one gets the partition.
                await stack.enter_async_context(lease.hold(storage, holder, wait=0))
            except (AlreadyHeld, Busy):
                # Probably flow.resume(), which gets the partition. Otherwise a worker repairs the partition.
                yield address
                return
            except StoredDataError:
                # It cannot be resumed.
                yield None
                return
            status = await _status(storage, holder, partition)
        yield address if status in HOLDS else None


async def _activate(storage: Storage, address: Address, *, always: bool = False) -> bool:
    """Give a waiting run a deadline, so that a worker takes it; return whether it is there."""
    for _ in range(ATTEMPTS):
        stored: Stored | None = await storage.perform(Get(address))
        if stored is None or stored.queue is None:
            return False
        if stored.deadline is not None and not always:
            return True
        try:
            change = Change(write=storage.ids(), deadline=0.0, limit=storage.seal(address).limit)
            await storage.perform(Apply(address, change, Guard(version=stored.version)))
        except VersionChanged:
            continue
        return True
    return False


async def _step_back(slot: Slot, queued: bool) -> None:
    """Release a run that has to wait for its partition."""
    if queued:
        try:
            await slot.commit(deadline=None, force=True, only_version=slot.version)
        except VersionChanged:
            # The holder has ended meanwhile and has activated this run.
            await slot.commit(deadline=0.0, force=True)
