"""Submits runs: writes them to a queue, from which workers take them."""

from __future__ import annotations

from collections.abc import Mapping
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple

from stepwell.codec import decode_key
from stepwell.codec.large import open_data, seal_data
from stepwell.errors import EncodeError, InvalidOption, RecordExists, Unstorable, UsageError, VersionChanged
from stepwell.nodes.events import current_trace
from stepwell.nodes.graph.plan import program_of
from stepwell.nodes.queue import partitions
from stepwell.nodes.queue.children import tag_of
from stepwell.nodes.queue.existing import act_on, digest_of, read_existing
from stepwell.nodes.queue.observers import submitted
from stepwell.nodes.queue.submission import Submission
from stepwell.nodes.run import lease
from stepwell.nodes.run.ids import check_flow_id, new_flow_id
from stepwell.nodes.run.notices import partitions_topic, wake_workers, workers_topic
from stepwell.nodes.run.reading import ReadRun
from stepwell.nodes.run.table import MAIL, PARAMS, Retention, flow_index, run_head, tag_texts, timeout_timer
from stepwell.record import DAY, KEEP, NOTHING, RUNS, Change, Keep, Place, Queue
from stepwell.slot import Slot
from stepwell.storage.operations import Apply, Guard, Operation

if TYPE_CHECKING:
    from stepwell.nodes.graph.base import BaseFlow
    from stepwell.storage import Storage

__all__ = ["Submitted", "kept_child", "submit"]

#: Seconds for which a submitted run is kept after its end if its flow keeps none, for ``RunHandle.result()``.
KEPT = DAY


class Submitted(NamedTuple):
    """A run that was submitted, now or before."""

    flow_id: str
    #: Whether this call has started a new run.
    created: bool


async def submit(
    flow: BaseFlow,
    shared: Mapping[Any, Any],
    how: Submission,
    *,
    storage: Storage,
    flow_id: str | None,
    connection: Any = None,
) -> Submitted:
    """Write a queued run, or do what the options say if there is a run of this id.

    ``connection``: a connection of the database of the storage, in whose transaction to write.
    """
    # An invalid graph is found here, not by a worker.
    program_of(flow, without_loop=False, durable=True)
    # No other call can have a new id, and a parent takes its child whatever data it has.
    compared = flow_id is not None and how.parent is None
    given = new_flow_id(flow._title()) if flow_id is None else flow_id
    check_flow_id(given)
    how.check()
    # A call to the storage of its own.
    clock = how.timeout is not None or how.at_most is not None
    now = await lease.clock(storage, given) if clock else 0.0
    if connection is not None and (how.debounce is not None or how.on_exists in ("replace", "restart")):
        option = "debounce=" if how.debounce is not None else f"on_exists={how.on_exists!r}"
        raise InvalidOption(
            f"connection= and {option} exclude each other: a run that exists would be locked until the end of your "
            "transaction"
        )
    if how.debounce is not None and flow_id is None:
        raise InvalidOption(f"debounce={how.debounce:g} delays the run of an id: give flow_id=, too")
    number = 1
    while True:
        name = given if number == 1 else f"{given}~{number}"
        row = _Row(flow, name, how, storage, now=now, compared=compared, connection=connection)
        created = await row.put(shared)
        if created is not None:
            return Submitted(name, created)
        # The debounced run of this id has started, so another one takes the data.
        number += 1


class _Row:
    """The record of a run to submit.

    ``now``: the time of the storage's clock if the options need it. ``compared``: whether a later call for this id
    compares its data with that of this one.
    """

    def __init__(
        self,
        flow: BaseFlow,
        flow_id: str,
        how: Submission,
        storage: Storage,
        *,
        now: float,
        compared: bool,
        connection: Any,
    ) -> None:
        self._flow, self._how, self._storage, self._now, self._connection = flow, how, storage, now, connection
        self._compared = compared
        self._slot = Slot(storage, RUNS, flow_id)
        self._seal = storage.seal(self._slot.address)
        self._title, self._index = flow._title(), flow_index(flow._title(), flow.revision)

    async def put(self, shared: Mapping[Any, Any]) -> bool | None:
        """Write the run, and return whether it is a new one; ``None`` if it must have another id."""
        storage, address = self._storage, self._slot.address
        while True:
            change, digest = await self._change(shared)
            try:
                await self._perform(Apply(address, change, Guard(absent=True)))
            except RecordExists:
                run = await read_existing(storage, address, self._title, self._perform)
            else:
                if self._connection is None:
                    await self._start(change)
                return True
            if run is None:
                continue
            act = await act_on(storage, run, self._how, shared, digest=digest)
            if act in ("return", "next"):
                return False if act == "return" else None
            before = run if act == "replace" else None
            data = shared if before is None else await self._merged(before, shared)
            change, _ = await self._change(data, before, anew=True)
            try:
                await storage.perform(Apply(address, change, Guard(version=run.stored.version)))
            except VersionChanged:
                # It has started, or another call has changed it.
                continue
            await self._start(change)
            return before is None

    async def _perform(self, operation: Operation) -> Any:
        """Perform an operation; with a connection in its transaction, whose commit then wakes a worker."""
        if self._connection is None:
            return await self._storage.perform(operation)
        topic = None
        if type(operation) is Apply and operation.change.queue is not None:
            topic = workers_topic(self._index) if self._how.partition is None else partitions_topic(self._title)
        (result,) = await self._storage.run_within(self._connection, [operation], topic=topic)
        if isinstance(result, Exception):
            raise result
        return result

    async def _merged(self, run: ReadRun, shared: Mapping[Any, Any]) -> Mapping[Any, Any]:
        """Return the data of a run that has not started, together with the new data."""
        if self._how.merge is None:
            return shared
        merged = self._how.merge(await open_data(self._seal, run.stored.fields), dict(shared))
        if not isinstance(merged, dict):
            raise UsageError(f"merge= returned a {type(merged).__name__}; return a dict")
        return merged

    def _place(self, before: ReadRun | None) -> tuple[float | None, Queue | Keep | None]:
        """Return the seconds after which the run may start, and its queue. ``before``: the run that it replaces."""
        how = self._how
        queued = None if before is None else before.stored.queue
        if how.debounce is not None and queued is not None:
            # Its delay has ended, and it waits for its partition.
            return None, KEEP
        delay = how.after if how.debounce is None else how.debounce
        if how.debounce is not None and how.at_most is not None and before is not None:
            latest = before.table.get("debounced", self._now) + how.at_most
            delay = max(min(how.debounce, latest - self._now), 0.0)
        if delay is not None:
            return delay, None
        queue = Queue(self._index, how.priority)
        if how.partition is not None:
            queue = partitions.queue_of(self._title, partitions.encode(how.partition))
        return None, KEEP if queued == queue else queue

    def _table(self, digest: str, before: ReadRun | None) -> dict[str, Any]:
        how = self._how
        table: dict[str, Any] = {
            "status": "queued",
            "graph": "",
            "visits": [],
            "started": 0.0,
            "keep": how.keep or KEPT,
            # For the history only, so the clock of this host will do.
            "idle": round((self._storage.clock or time)(), 3),
        }
        if digest:
            table["input"] = digest
        if (trace := current_trace()) is not None:
            table["trace"] = trace
        if how.priority:
            table["priority"] = how.priority
        if how.parent is not None:
            table["parent"] = how.parent.flow_id
            if how.parent.above:
                table["above"] = [list(each) for each in how.parent.above]
        if how.partition is not None:
            table["partition"] = partitions.encode(how.partition)
        if how.params:
            table["params"] = True
        if how.timeout is not None:
            table["timeout"] = [how.timeout, self._now + how.timeout]
        if how.at_most is not None:
            table["debounced"] = self._now if before is None else before.table.get("debounced", self._now)
        return table

    async def _change(
        self, shared: Mapping[Any, Any], before: ReadRun | None = None, *, anew: bool = False
    ) -> tuple[Change, str]:
        """Return the write, and the digest of the data.

        ``anew``: it replaces a record. ``before``: a run that has not started, whose mail and place in the queue the
        run keeps.
        """
        how = self._how
        parts: dict[str, str] = {}
        try:
            fields = await seal_data(self._seal, shared)
            if how.params:
                parts[PARAMS] = self._slot.seal_part(PARAMS, dict(how.params)).text
        except EncodeError as error:
            raise Unstorable("", error.path, error.type_name, error.why) from error
        digest = digest_of(fields, parts.get(PARAMS, "")) if self._compared else ""
        table = self._table(digest, before)
        for name, text in ({} if before is None else before.stored.parts or {}).items():
            if name.startswith(MAIL):
                parts[name], table["mail"] = text, True
        delay, queue = self._place(before)
        timers = timeout_timer(table)
        times = [*([] if delay is None else [delay]), *(until - self._now for until in timers.values())]
        revision = self._flow.revision
        place = Place(self._title, None, revision if revision > 1 else None)
        tags = tuple(tag_texts(how.tags)) + (() if how.parent is None else (tag_of(how.parent.flow_id),))
        expiry = self._storage.expiry_of(self._slot.address)
        change = Change(
            write=self._storage.ids(),
            replace=anew,
            fresh=not anew,
            head=self._seal.head(run_head(place, table, self._storage.limits, timers)),
            set=fields,
            tags=tags if tags or anew else KEEP,
            deadline=min(times) if times else None,
            # A run that has ended has an expiry.
            expiry=None if anew and expiry is KEEP else expiry,
            parts=parts or NOTHING,
            limit=self._seal.limit,
            queue=queue,
        )
        return change, digest

    async def _start(self, change: Change) -> None:
        """Wake a worker for a run that was written, unless it starts later."""
        if change.queue is None:
            return
        submitted(self._storage, self._title, decode_key(self._slot.address.key))
        if self._how.partition is not None:
            await partitions.promote(self._storage, self._title, partitions.encode(self._how.partition))
        else:
            wake_workers(self._storage, self._index)


def kept_child(keep: Retention) -> Retention:
    """Return how long a child of a flow with this ``keep`` is kept; its parent must have time to read its result."""
    return True if keep is True else max(keep, KEPT)
