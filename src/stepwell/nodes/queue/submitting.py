"""Submits runs: writes them to a queue, from which workers take them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepwell.codec.large import seal_data
from stepwell.errors import EncodeError, RecordExists, RunExists, UnknownRun, Unstorable
from stepwell.nodes.graph.plan import program_of
from stepwell.nodes.queue import partitions
from stepwell.nodes.queue.children import Parent, tag_of
from stepwell.nodes.run.ids import check_flow_id, new_flow_id
from stepwell.nodes.run.notices import wake_workers
from stepwell.nodes.run.reading import read_known_run
from stepwell.nodes.run.table import PARAMS, Retention, flow_index, run_head
from stepwell.options import check_number, check_whole
from stepwell.record import DAY, KEEP, NOTHING, RUNS, Change, Place, Queue
from stepwell.slot import Slot
from stepwell.storage.operations import Apply, Guard

if TYPE_CHECKING:
    from stepwell.nodes.graph.base import BaseFlow
    from stepwell.storage import Storage

__all__ = ["kept_child", "submit"]

#: Seconds for which a submitted run is kept after its end if its flow keeps none, for ``RunHandle.result()``.
KEPT = DAY


async def submit(
    flow: BaseFlow,
    shared: Mapping[Any, Any],
    *,
    storage: Storage,
    flow_id: str | None,
    keep: Retention,
    partition: str | int | None = None,
    after: float | None = None,
    priority: int = 0,
    params: Mapping[str, Any] = NOTHING,
    parent: Parent | None = None,
) -> str:
    """Write a queued run, unless there is a run of this id already, and return its id. ``parent``: it is a child."""
    # An invalid graph is found here, not by a worker.
    program_of(flow, without_loop=False, durable=True)
    title, revision = flow._title(), flow.revision
    flow_id = new_flow_id(title) if flow_id is None else flow_id
    check_flow_id(flow_id)
    _check(after, priority)
    index = flow_index(title, revision)
    slot = Slot(storage, RUNS, flow_id)
    table: dict[str, Any] = {"status": "queued", "graph": "", "visits": [], "started": 0.0, "keep": keep or KEPT}
    if priority:
        table["priority"] = priority
    if parent is not None:
        table["parent"] = parent.flow_id
        if parent.above:
            table["above"] = [list(each) for each in parent.above]
    queue: Queue | None = Queue(index, priority)
    if partition is not None:
        table["partition"] = partitions.encode(partition)
        queue = partitions.queue_of(title, table["partition"])
    if params:
        table["params"] = True
    if after is not None:
        queue = None
    seal = storage.seal(slot.address)
    try:
        fields = await seal_data(seal, shared)
        parts = {PARAMS: slot.seal_part(PARAMS, dict(params)).text} if params else NOTHING
    except EncodeError as error:
        raise Unstorable("", error.path, error.type_name, error.why) from error
    change = Change(
        write=storage.ids(),
        fresh=True,
        head=seal.head(run_head(Place(title, None, revision if revision > 1 else None), table, storage.limits)),
        set=fields,
        tags=KEEP if parent is None else (tag_of(parent.flow_id),),
        deadline=after,
        expiry=storage.expiry_of(slot.address),
        parts=parts,
        limit=seal.limit,
        queue=queue,
    )
    try:
        await storage.perform(Apply(slot.address, change, Guard(absent=True)))
    except RecordExists:
        await _check_same(storage, slot, flow_id, title)
        return flow_id
    if after is None and partition is not None:
        await partitions.promote(storage, title, table["partition"])
    elif after is None:
        wake_workers(storage, index)
    return flow_id


def kept_child(keep: Retention) -> Retention:
    """Return how long a child of a flow with this ``keep`` is kept; its parent must have time to read its result."""
    return True if keep is True else max(keep, KEPT)


def _check(after: object, priority: object) -> None:
    check_number(after, "after={}: give a number of seconds, or None", least=0, optional=True, finite=True)
    check_whole(
        priority,
        "priority={}: give an int of at most 32 bits; higher ones are taken first",
        least=-(1 << 31),
        most=(1 << 31) - 1,
    )


async def _check_same(storage: Storage, slot: Slot, flow_id: str, title: str) -> None:
    """Raise ``RunExists`` unless the record of this id is a run of this flow."""
    try:
        run = await read_known_run(storage, slot.address)
    except UnknownRun as unknown:
        if unknown.state_only:
            raise RunExists(flow_id, state_only=True) from unknown
        return
    if run.place.flow != title:
        raise RunExists(flow_id, flow=run.place.flow)
