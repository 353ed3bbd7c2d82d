"""Child runs: their ids, the notice of their end to their parent, and their cancellation with it.

A child is a submitted run whose table names its parent. Its end is committed with a deadline, then mailed to the
parent, then the deadline is removed. If its process is killed in between, a worker finds the child by its deadline and
sends the mail again.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stepwell._secrets import quoted
from stepwell.errors import (
    AlreadyHeld,
    Busy,
    Parked,
    RunFinished,
    StepwellError,
    StoredDataError,
    UnknownRun,
    UsageError,
    VersionChanged,
)
from stepwell.nodes.queue import partitions
from stepwell.nodes.run import lease, mail
from stepwell.nodes.run.branch import Park
from stepwell.nodes.run.notices import wake_waiters
from stepwell.nodes.run.reading import read_run
from stepwell.nodes.run.table import ENDED, FINAL, held_table, table_of
from stepwell.nodes.run.waits import is_child_wait
from stepwell.record import RUNS, Change, Place
from stepwell.slot import Slot
from stepwell.storage.operations import Apply, Guard

if TYPE_CHECKING:
    from stepwell.nodes.graph.base import BaseFlow
    from stepwell.nodes.run.branch import Branch
    from stepwell.nodes.run.journal import Journal
    from stepwell.nodes.walk.execution import Cursor
    from stepwell.storage import Storage

__all__ = [
    "Parent",
    "cancel_all",
    "check_partition",
    "id_of_child",
    "is_cancelled",
    "parent_of",
    "park_for",
    "place_of",
    "release",
    "report",
    "tag_of",
]

logger: logging.Logger = logging.getLogger(__name__)

#: The longest part of a child's id that names its parent. Keys have a limit, and children may have children.
LONGEST_PLACE: Final = 200


class Parent(NamedTuple):
    """The parent of a child, as the child stores it."""

    flow_id: str
    #: The flow and the partition of each run above the child that has one.
    above: tuple[tuple[str, str], ...]


def tag_of(flow_id: str) -> str:
    """Return the tag of the children of a run."""
    return f"parent:{flow_id}"


def branch_of(cursor: Cursor | None, flow_id: str) -> Branch:
    """Return the branch that a node runs in; raise ``UsageError`` outside a durable run."""
    if cursor is None or cursor.run.flow_id != flow_id:
        raise UsageError("child() was called outside its step; call step().child(...) in prep, exec or post of a node")
    if cursor.branch is None:
        raise UsageError(
            f"node {quoted(cursor.node)} starts a child run, so its own run needs a storage: run(shared, storage=...)"
        )
    return cursor.branch


def parent_of(journal: Journal) -> Parent:
    """Return a run as the parent of a new child."""
    above = [(flow, partition) for flow, partition in journal.submitted.get("above", ())]
    if "partition" in journal.submitted:
        above.append((journal.flow, journal.submitted["partition"]))
    return Parent(journal.flow_id, tuple(above))


def check_partition(flow: BaseFlow, partition: str | int | None, parent: Parent) -> None:
    """Raise ``UsageError`` if a child would wait for a partition that a run above it has."""
    if partition is not None and (flow._title(), partitions.encode(partition)) in parent.above:
        raise UsageError(
            f"a child run of {quoted(flow._title())} in partition {quoted(partition)} would wait for its parent "
            f"{quoted(parent.flow_id)}, which has this partition and waits for it; give the child another "
            "partition or none"
        )


def place_of(branch: Branch, node: str, visit: int, item: int | None = None) -> str:
    """Return the first part of the ids of the children of a step.

    A run that parks at a step stores it, so that a deploy which renames the node does not start the children again.
    """
    journal = branch.journal
    wait = journal.open.get(node)
    if is_child_wait(wait):
        return str(wait["step"])
    # The mark distinguishes the children of an earlier run of the same id, which may still be stored.
    mark = f":{journal.mark}" if journal.mark else ""
    place = f"{journal.flow_id}{mark}/{node}/{visit}" + ("" if item is None else f"/{item}")
    if len(place.encode("utf-8", "replace")) <= LONGEST_PLACE:
        return place
    digest = hashlib.sha256(place.encode("utf-8", "replace")).hexdigest()[:32]
    return f"{place[:20]}~{digest}"


def id_of_child(place: str, id: str | int) -> str:  # noqa: A002
    """Return the id of a child run."""
    return f"{place}/{id}"


def park_for(cursor: Cursor, child: str, timeout: float | None) -> Park | Parked:
    """Return the exception that parks a node, or an item of a batch, until a child has ended.

    Raises ``TimeoutError`` if that took too long.
    """
    branch = cursor.branch
    assert branch is not None
    stage = next(stage for stage in cursor.run.program.stages if stage.path == cursor.node)
    if cursor.item is not None:
        if timeout is not None:
            raise UsageError(
                f"an item of batch {quoted(cursor.node)} waits for a child run with a timeout, which is not supported; "
                "wait for it in a Node, or without a timeout"
            )
        return Parked("", branch.journal.flow_id, cursor.node, None, None, for_children=True)
    if stage.node._shape != "node":
        raise UsageError(
            f"{quoted(cursor.node)} waits for a child run, and is a {stage.node._shape}; wait in prep, exec "
            "or post of a Node"
        )
    journal = branch.journal
    wait = journal.open.get(cursor.node)
    timeouts: dict[str, float] = dict(wait.get("timeouts", {})) if is_child_wait(wait) else {}
    until = None
    if timeout is not None:
        until = timeouts.setdefault(child, journal.now() + timeout)
        fired = is_child_wait(wait) and cursor.node in journal.overdue and wait["until"] == until
        if fired or until <= journal.now():
            raise TimeoutError(f"child run {quoted(child)} has not ended within {timeout} seconds")
    place = place_of(branch, cursor.node, cursor.visit)
    return Park({"id": "", "question": None, "until": until, "step": place, "child": child, "timeouts": timeouts})


async def report(storage: Storage, flow_id: str, parent: str) -> None:
    """Mail the end of a child to its parent, unless that has ended."""

    async def message_of(place: Place, table: dict[str, Any]) -> Mapping[str, Any] | None:
        return None if table["status"] in FINAL else {"child": flow_id}

    # A parent that is not kept leaves no record.
    with suppress(UnknownRun):
        await mail.send(storage, parent, "child", message_of)


async def release(
    storage: Storage, flow: str, flow_id: str, submitted: Mapping[str, Any], *, ended: bool = True
) -> None:
    """Let the next run of the partition start, and wake the parent. ``ended``: the run is not only paused."""
    if "partition" in submitted:
        await partitions.release(storage, flow, submitted["partition"])
    if ended and "parent" in submitted:
        try:
            await report(storage, flow_id, submitted["parent"])
            await _remove_deadline(storage, flow_id)
        except StepwellError as error:
            logger.warning(
                "the end of child run %s was not reported yet (%s); a worker repeats it", quoted(flow_id), error
            )


async def _remove_deadline(storage: Storage, flow_id: str) -> None:
    """Remove the deadline of a run that has ended; another process may have started it again meanwhile."""
    run = await read_run(storage, flow_id)
    if run is None or run.stored.deadline is None or run.table["status"] not in ENDED:
        return
    change = Change(write=storage.ids(), deadline=None, limit=storage.seal(run.address).limit)
    with suppress(VersionChanged):
        await storage.perform(Apply(run.address, change, Guard(version=run.stored.version)))


async def is_cancelled(storage: Storage, flow_id: str) -> bool:
    """Return whether a run was cancelled."""
    run = await read_run(storage, flow_id)
    return run is not None and run.table["status"] == "cancelled"


async def cancel_all(storage: Storage, flow_id: str, hand_over: Callable[[Slot, str | None], Awaitable[None]]) -> None:
    """Cancel the children of a run; ``hand_over`` is called with one whose nodes a worker has to undo.

    If this process is killed in between, the mail that cancels the run is still there. A damaged child is only logged.
    """
    async for entry in storage.scan(RUNS, tag=tag_of(flow_id)):
        try:
            table = table_of(entry.head, entry.address)
            if table is not None and table.get("parent") == flow_id and table["status"] not in ENDED:
                with suppress(UnknownRun, RunFinished):
                    await _cancel_child(storage, entry.key, f"its parent {quoted(flow_id)} was cancelled", hand_over)
        except StoredDataError as error:
            logger.warning("child run %s was not cancelled with its parent: %s", quoted(entry.key), error)


async def _cancel_child(
    storage: Storage, flow_id: str, reason: str, hand_over: Callable[[Slot, str | None], Awaitable[None]]
) -> None:
    """Cancel a run if it has no runner; otherwise let its runner cancel it."""

    async def message_of(place: Place, table: dict[str, Any]) -> Mapping[str, Any] | None:
        return None if table["status"] in ENDED else {"reason": reason}

    try:
        async with lease.hold(storage, flow_id, wait=0) as slot:
            table = held_table(slot)
            if table is None or table["status"] in ENDED:
                return
            await cancel_all(storage, flow_id, hand_over)
            if table.get("undos"):
                await hand_over(slot, reason)
                return
            place = slot.place
            await lease.cancel(slot, reason)
    except (AlreadyHeld, Busy):
        await mail.send(storage, flow_id, "cancel", message_of)
        return
    wake_waiters(storage, flow_id)
    await release(storage, place.flow or "", flow_id, table)
