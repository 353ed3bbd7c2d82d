"""Partitions of queues: runs of one partition run one after the other, in the order of their queue.

A lock record for each partition names the run that has it. The waiting runs are in a queue of the partition, the oldest
one first. When the partition is free, its oldest run is promoted: the lock names it, and it moves to the end of the
queue of its flow, with its own priority. So workers take it in turn with all other runs. Workers repair partitions
whose next run was not promoted, because a process was killed between two writes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from stepwell._secrets import quoted
from stepwell.codec.keys import check_name, decode_key, encode_key
from stepwell.codec.large import open_data
from stepwell.errors import (
    AlreadyHeld,
    Busy,
    LeaseLost,
    RecordExists,
    RunBusy,
    StepwellError,
    StoredDataError,
    VersionChanged,
)
from stepwell.nodes.run import lease
from stepwell.nodes.run.notices import wake_workers
from stepwell.nodes.run.reading import read_run
from stepwell.nodes.run.table import flow_index, timeout_timer
from stepwell.options import check
from stepwell.record import PARTITIONS, RUNS, Address, Change, Queue, Stored
from stepwell.slot import Slot
from stepwell.storage.operations import Apply, Get, Guard

if TYPE_CHECKING:
    from stepwell.storage import Storage

__all__ = ["Repairs", "acquire", "encode", "following", "holder_of", "promote", "queue_of", "release"]

logger: logging.Logger = logging.getLogger(__name__)

#: The statuses in which a run keeps its partition.
HOLDING = frozenset({"running", "parked", "sleeping"})
#: The same for the run that its lock names, which may be about to start.
HOLDS = HOLDING | {"queued"}
#: The statuses of runs that have left their partition, and get it again when they are resumed.
RESUMABLE = frozenset({"paused", "failed", "stuck"})
#: How often a write is tried again after another writer was faster.
ATTEMPTS = 10
#: Seconds after which a promoted run that no worker has started may be damaged.
OVERDUE = 10.0
#: The most partitions of a flow that are checked at once.
AT_ONCE = 200


def encode(partition: str | int) -> str:
    """Return a partition as text; raise ``InvalidOption`` unless it is a non-empty str or an int."""
    check(
        type(partition) is int or (isinstance(partition, str) and partition),
        "partition={}: give a non-empty str or an int, or None",
        partition,
    )
    check_name("the partition", partition)
    return encode_key(partition)


def queue_of(flow: str, partition: str) -> Queue:
    """Return the queue in which the runs of a partition wait, of all revisions of the flow."""
    return Queue(_prefix(flow) + partition)


def _prefix(flow: str) -> str:
    """Return how the names of all queues of partitions of a flow begin."""
    # Names of flows have no "/".
    return f"{flow_index(flow)}/"


async def acquire(slot: Slot, flow_id: str, flow: str, table: dict[str, Any]) -> None:
    """Give a run its partition. If another run has it or is before it, release the slot and raise ``RunBusy``."""
    storage, partition = slot.storage, table["partition"]
    queued, waiting = table["status"] == "queued", queue_of(flow, partition)
    if queued and slot.queue is None:
        # Its delay has ended, so it enters the queue.
        await slot.commit(keep=True, queue=waiting, timers=timeout_timer(table), force=True)
    lock = storage.address(PARTITIONS, (flow, partition))
    while True:
        stored: Stored | None = await storage.perform(Get(lock))
        holder = _named(storage, lock, stored)
        if holder == flow_id:
            # It was promoted, or an earlier runner was killed before it could start the run.
            return
        async with _unresumed(storage, holder, partition) as has_it:
            before = has_it
            if before is None and queued:
                first = await _readable_of(storage, waiting.name, slot.address)
                if first is None and slot.queue == waiting:
                    # Another runner has started this run, because the lease here has ended.
                    raise LeaseLost(slot.address.text)
                before = None if first == slot.address else first or slot.address
            if before is None:
                try:
                    await _lock(storage, lock, stored, flow_id)
                except (RecordExists, VersionChanged):
                    continue
                return
        if queued:
            await slot.commit(queue=waiting, timers=timeout_timer(table), force=True)
        await promote(storage, flow, partition)
        raise RunBusy(flow_id, 0.0, partition=partition)


async def release(storage: Storage, flow: str, partition: str) -> None:
    """Let the next run of a partition start, after the end of a run. Best effort: workers repair partitions."""
    try:
        await promote(storage, flow, partition)
    except StepwellError as error:
        logger.warning("the next run of partition %s could not be started yet: %s", partition, error)


async def promote(storage: Storage, flow: str, partition: str) -> None:
    """Put the oldest waiting run of a partition into the queue of its flow, unless another run has the partition."""
    lock, name = storage.address(PARTITIONS, (flow, partition)), queue_of(flow, partition).name
    for _ in range(ATTEMPTS):
        stored: Stored | None = await storage.perform(Get(lock))
        try:
            async with _unresumed(storage, _named(storage, lock, stored), partition) as holder:
                first = holder
                if first is None:
                    first = await _readable_of(storage, name)
                    if first is None:
                        if stored is not None:
                            # If a run has got the partition meanwhile, the version has changed.
                            change = Change(write=storage.ids(), delete=True, forget=True)
                            await storage.perform(Apply(lock, change, Guard(version=stored.version)))
                        return
                    await _lock(storage, lock, stored, str(decode_key(first.key)))
            if await _enqueue(storage, name, first):
                return
        except (RecordExists, VersionChanged):
            continue


async def _lock(storage: Storage, lock: Address, stored: Stored | None, flow_id: str) -> None:
    """Write the run that has a partition; raise ``RecordExists`` or ``VersionChanged`` if the lock has changed."""
    seal = storage.seal(lock)
    change = Change(write=storage.ids(), set=seal.fields({"run": flow_id}), limit=seal.limit)
    guard = Guard(absent=True) if stored is None else Guard(version=stored.version)
    await storage.perform(Apply(lock, change, guard))


async def _enqueue(storage: Storage, name: str, address: Address) -> bool:
    """Put the run that has a partition into the queue of its flow; return ``False`` if it is gone."""
    run = await read_run(storage, address)
    if run is None:
        return False
    if run.stored.queue is None or run.stored.queue.name != name:
        # It is in that queue, or has started.
        return True
    index = flow_index(run.place.flow or "", run.place.revision or 1)
    queue = Queue(index, run.table.get("priority", 0))
    change = Change(write=storage.ids(), queue=queue, limit=storage.seal(address).limit)
    await storage.perform(Apply(address, change, Guard(version=run.stored.version)))
    wake_workers(storage, index)
    return True


async def holder_of(storage: Storage, flow: str, partition: str) -> str | None:
    """Return the id of the run that has a partition, given as text, or ``None``."""
    lock = storage.address(PARTITIONS, (flow, partition))
    return _named(storage, lock, await storage.perform(Get(lock)))


async def following(storage: Storage, flow: str, flow_id: str) -> str | None:
    """Return the id of the run that has got the partition of a run which has ended, or ``None``."""
    run = await read_run(storage, flow_id)
    if run is None or "partition" not in run.table:
        return None
    holder = await holder_of(storage, flow, run.table["partition"])
    if holder is None or holder == flow_id:
        return None
    return holder if await _status(storage, holder, run.table["partition"]) == "queued" else None


class Repairs:
    """Finds partitions whose next run nothing else will start, and starts it: up to ``AT_ONCE`` at a time."""

    def __init__(self, storage: Storage, flows: Iterable[str]) -> None:
        self._storage = storage
        #: The flows by the beginning of the names of their queues.
        self._flows = {_prefix(flow): flow for flow in sorted(flows, key=_prefix)}
        #: The next check begins behind this name.
        self._after = next(iter(self._flows))

    async def check(self) -> None:
        """Check the next partitions."""
        names = await self._storage.queues(RUNS, after=self._after, limit=AT_ONCE)
        repairs, last = [], ""
        for name in names:
            last = f"{name.partition('/')[0]}/"
            if last in self._flows and name != last:
                repairs.append(promote(self._storage, self._flows[last], name.removeprefix(last)))
        if len(names) < AT_ONCE:
            self._after = next(iter(self._flows))
        elif last in self._flows:
            self._after = names[-1]
        else:
            # The queues of flows in between are skipped.
            self._after = next((prefix for prefix in self._flows if prefix > names[-1]), next(iter(self._flows)))
        for problem in await asyncio.gather(*repairs, return_exceptions=True):
            if isinstance(problem, BaseException):
                raise problem


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
    try:
        return await read_run(storage, address) is not None
    except StoredDataError:
        return False


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


async def _status(storage: Storage, flow_id: str, partition: str) -> str | None:
    """Return the status of a run of a partition; ``None`` if there is none, or if its delay has not ended."""
    try:
        run = await read_run(storage, flow_id)
        if run is None or run.table.get("partition") != partition:
            return None
        waited = (storage.clock or time.time)() - run.stored.written_at
        if run.table["status"] == "queued" and waited > OVERDUE:
            # No worker has started it. Its data may be the reason.
            await open_data(storage.seal(run.address), run.stored.fields)
    except StepwellError as error:
        logger.warning("run %s cannot be read, so it loses its partition: %s", quoted(flow_id), error)
        return None
    return None if run.table["status"] == "queued" and run.stored.queue is None else str(run.table["status"])


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
