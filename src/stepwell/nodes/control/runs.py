"""Starts and resumes durable runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, cast

from stepwell._secrets import quoted
from stepwell.codec.values import conform
from stepwell.errors import (
    Busy,
    CorruptRecord,
    FlowChanged,
    RunBusy,
    RunCancelled,
    RunExists,
    RunFailed,
    RunFinished,
    RunPaused,
    RunReplaced,
    RunStuck,
    UnknownRun,
    UsageError,
)
from stepwell.errors.wording import counted
from stepwell.nodes.control.ending import commit_cancelled, execute, execute_undo, release
from stepwell.nodes.control.fitting import fitting_answer
from stepwell.nodes.control.undoing import begin
from stepwell.nodes.deploy.loading import load, load_queued, load_undoing
from stepwell.nodes.events import current_trace
from stepwell.nodes.graph.plan import program_of
from stepwell.nodes.queue import children, partitions
from stepwell.nodes.run import deaths, lease, waits
from stepwell.nodes.run.ids import WaitId, flow_of_wait, new_flow_id
from stepwell.nodes.run.journal import Journal
from stepwell.nodes.run.table import ENDED, table_of
from stepwell.record import KEEP, RUNS
from stepwell.storage.operations import Get

if TYPE_CHECKING:
    from stepwell.nodes.control.options import IfExists
    from stepwell.nodes.graph.base import BaseFlow
    from stepwell.nodes.graph.plan import Program
    from stepwell.nodes.run.table import Retention
    from stepwell.nodes.walk.execution import Execution
    from stepwell.slot import Slot
    from stepwell.storage import Storage

__all__ = ["raise_missing", "resume", "start", "undone_error"]

logger: logging.Logger = logging.getLogger(__name__)

NewExecution = Callable[["Program", str], "Execution"]

#: The statuses of runs that a worker may continue.
_TAKEN_BY_WORKERS = frozenset({"queued", "running", "parked", "sleeping"})
#: Seconds that a new run waits for a claim of its id before it checks again whether a run exists.
CLAIM_WAIT = 0.25
#: Seconds after which a call logs that it waits for another runner.
NOTICE = 1.0
_HELD = "run %s is held by another runner; waiting up to %g s until it parks or ends, or its lease ends if it died"


async def start(
    flow: BaseFlow,
    shared: dict[str, Any],
    *,
    storage: Storage,
    flow_id: str | None,
    params: Mapping[str, Any],
    if_exists: IfExists,
    keep: Retention,
    new_execution: NewExecution,
) -> dict[str, Any]:
    """Write the start row of a run, and run it to its end."""
    program = program_of(flow, without_loop=False, durable=True)
    if flow_id is None:
        flow_id = new_flow_id(flow._title())
    run = new_execution(program, flow_id)
    loop = asyncio.get_running_loop()
    asked_at, longest = loop.time(), lease.LEASE + 2
    wait, held = 0.0 if if_exists == "raise" else longest, False
    # On the storage's clock, and not before the call: a run that finished just before it must not count.
    called_at: float | None = None
    while True:
        try:
            async with _hold(storage, flow_id, wait) as slot:
                held = True
                if slot.found:
                    if if_exists == "raise":
                        await slot.confirm()
                        async with _quarantine(slot):
                            raise RunExists(flow_id, state_only=table_of(slot.head, slot.address) is None)
                    return await _continue(flow, slot, flow_id, wait_id=None, value=..., new_execution=new_execution)
                finished_at = _finished_at(slot) if wait else None
                since = slot.time() - (loop.time() - asked_at) if called_at is None else called_at
                if finished_at is not None and finished_at > since:
                    # The run has finished while this call waited for it.
                    await slot.confirm()
                    raise RunExists(flow_id) if if_exists == "raise" else RunFinished(flow_id)
                journal = Journal(slot, program, flow._title(), flow_id, shared)
                if (trace := current_trace()) is not None:
                    journal.submitted["trace"] = trace
                await journal.begin(params, keep)
                return await execute(run, journal, params)
        except Busy as busy:
            if held:
                # The error of a node.
                raise
            if if_exists == "raise" and await storage.perform(Get(storage.address(RUNS, flow_id))) is not None:
                raise RunExists(flow_id) from busy
            if if_exists != "raise" or loop.time() - asked_at >= longest:
                raise RunBusy(flow_id, longest) from busy
            # A call for an unknown run, for example of resume(), claims its id for a moment, and a call of run() claims
            # it before it writes the start row.
            wait = CLAIM_WAIT
            if called_at is None:
                waited = loop.time() - asked_at
                called_at = await lease.clock(storage, flow_id) - waited


async def resume(
    flow: BaseFlow,
    given: str,
    value: Any,
    *,
    storage: Storage,
    new_execution: NewExecution,
    wait: float | None = None,
    by_worker: bool = False,
    by: str | None = None,
    lease_seconds: float | None = None,
) -> dict[str, Any]:
    """Resume a run, given by its id or by the id of one of its waits.

    ``by_worker``: raise ``RunFinished`` if the run has ended, is paused, or needs a call of ``flow.resume()``.
    ``lease_seconds``: another lease than the usual one.
    """
    flow_id = flow_of_wait(given)
    wait_id = None if flow_id is None else given
    flow_id = flow_id or given
    # Longer than the lease of a runner that has just died.
    wait, held = lease.LEASE + 2 if wait is None else wait, False
    try:
        async with _hold(storage, flow_id, wait, lease_seconds) as slot:
            held = True
            return await _continue(
                flow,
                slot,
                flow_id,
                wait_id=wait_id,
                value=value,
                new_execution=new_execution,
                by_worker=by_worker,
                by=by,
            )
    except Busy as busy:
        if held:
            # The error of a node, or the run waits for its partition.
            raise
        raise RunBusy(flow_id, wait, answer=value is not ...) from busy


def _hold(
    storage: Storage, flow_id: str, wait: float, seconds: float | None = None
) -> AbstractAsyncContextManager[Slot]:
    """Hold a run, and log after a second if the call waits for another runner."""
    slot = lease.hold(storage, flow_id, wait=wait, seconds=seconds)
    return slot if wait <= NOTICE else _announced(slot, flow_id, wait)


@asynccontextmanager
async def _announced(slot: Slot, flow_id: str, wait: float) -> AsyncIterator[Slot]:
    def log() -> None:
        # If it holds the run already, it loads a large state.
        if not slot.holding:
            logger.warning(_HELD, quoted(flow_id), wait)

    notice = asyncio.get_running_loop().call_later(NOTICE, log)
    try:
        async with slot:
            notice.cancel()
            yield slot
    finally:
        notice.cancel()


async def _continue(
    flow: BaseFlow,
    slot: Slot,
    flow_id: str,
    *,
    wait_id: str | None,
    value: Any,
    new_execution: NewExecution,
    by_worker: bool = False,
    by: str | None = None,
) -> dict[str, Any]:
    """Continue a stored run, or return its state if it has finished."""
    # Some results below come from the record of an earlier runner, which must be durable before they are returned.
    await slot.confirm()
    if not slot.found:
        raise _missing(slot, flow_id)
    async with _quarantine(slot):
        table = table_of(slot.head, slot.address)
    if table is None:
        raise UnknownRun(flow_id, state_only=True)
    asked = None if wait_id is None else WaitId.read(wait_id)
    if asked is not None and asked.run != table.get("run", ""):
        raise RunFinished(flow_id, wait_id)
    if by_worker and table["status"] not in _TAKEN_BY_WORKERS:
        if slot.deadline is not None or slot.queue is not None:
            if table["status"] in ENDED and "parent" in table:
                # Its runner was killed before it could report the end.
                await children.report(slot.storage, flow_id, table["parent"])
            # Otherwise mail that was written just after the run ended or stopped has set the deadline.
            await slot.commit(timers={}, queue=None, force=True)
        raise RunFinished(flow_id)
    if table["status"] == "cancelled":
        raise RunCancelled(flow_id, table.get("cancelled") or None)
    if table["status"] == "finished":
        if value is not ... and wait_id is None:
            raise RunFinished(flow_id)
        return dict(slot.data)
    program = program_of(flow, without_loop=False, durable=True)
    journal = Journal(slot, program, flow._title(), flow_id, dict(slot.data))
    if "undo" in table:
        raise await _go_on_undoing(flow, journal, table, new_execution, by_worker=by_worker)
    if table["status"] == "failed" and "undone" in table:
        raise undone_error(flow_id)
    if table.get("before", table["status"]) == "queued":
        return await _take(journal, table, value, new_execution, by_worker=by_worker)
    async with _quarantine(slot), _mark_stuck(journal, new_execution):
        params = await load(journal)
    if table["status"] in ("failed", "stuck"):
        # Somebody has decided to go on, whatever time has passed.
        journal.submitted.pop("timeout", None)
    _check_timeout(journal)
    await _obey(journal, by_worker, new_execution)
    if table["status"] == "running" and not table.get("interrupted") and not deaths.was_left_alive(journal.slot):
        await _count_recovery(flow, journal, table.get("recoveries", 0) + 1, new_execution)
    if wait_id is not None:
        _check_wait(journal, wait_id)
    journal.deliver()
    if value is not ...:
        _answer(journal, wait_id, value, by)
    if "partition" in table and table["status"] not in partitions.HOLDING:
        # Also if it only waits again: a run keeps its partition while it waits.
        await partitions.acquire(slot, flow_id, journal.flow, table)
    await _park_again(journal, table["status"], by_worker, new_execution)
    if by_worker and not deaths.begin_suspect(journal, journal.recoveries):
        raise RunBusy(flow_id, 0.0)
    try:
        journal.status = "running"
        await journal.save(slot.state or "", queue=KEEP if slot.queue is None else None)
        return await execute(_began(new_execution(program, flow_id), journal), journal, params)
    finally:
        deaths.end_suspect(journal)


def _check_wait(journal: Journal, wait_id: str) -> None:
    """Raise ``UsageError`` unless this is a current or an earlier wait of the run."""
    asked = WaitId.read(wait_id)
    visits = {s.path: journal.visits[s.index] for s in journal.program.stages if s.node._shape == "wait"}
    visits |= journal.former
    if wait_id not in waits.questions(journal.open).values() and (
        asked is None or not waits.was_asked(journal.open, visits, asked)
    ):
        raise waits.never_asked(journal.flow_id, wait_id, journal.open)


def _answer(journal: Journal, wait_id: str | None, value: Any, by: str | None) -> None:
    """Store the answer to a wait, or to the only wait of the run; raise ``Unstorable`` if it cannot be stored.

    An answer to an earlier question is ignored, and so is one after the deadline, even if no worker has fired the
    timeout yet.
    """
    asked = waits.questions(journal.open)
    if wait_id is None:
        wait_id = waits.only_wait(journal.flow_id, journal.open)
        if wait_id is None:
            raise UsageError(f"run {quoted(journal.flow_id)} waits for no answer; resume it without a value")
    path = next((path for path, known in asked.items() if wait_id == known), None)
    if path is None or path in journal.overdue:
        return
    flow = cast("BaseFlow", journal.program.root.node)
    value = fitting_answer(flow, journal.flow_id, path, journal.open[path], value)
    journal.parts.seal(path, "answer", value, "the answer{}".format)
    journal.set_answer(path, value, by)


async def _park_again(journal: Journal, stored: str, by_worker: bool, new_execution: NewExecution) -> None:
    """Raise ``Parked`` if a run waits or sleeps, and has nothing to continue with. ``stored``: its stored status."""
    slot = journal.slot
    ready = journal.overdue or any(waits.has_answer(inside) for inside in journal.open.values())
    if journal.rechecks and (not by_worker or min(until for _, until in journal.rechecks.values()) <= slot.now):
        # Items of a batch wait for other runs, which may have ended.
        ready = True
    if ready or journal.status not in ("parked", "sleeping"):
        return
    if stored in ("parked", "sleeping") and (slot.deadline is None or slot.deadline > slot.now):
        raise journal.parked()
    # A stuck, paused or retried run waits as before. Otherwise mail that answers no wait has set the deadline to
    # the past, and must not wake workers again.
    parked = await journal.park()
    if parked is not None:
        raise parked
    if journal.mailbox.cancel is not None:
        raise await commit_cancelled(journal, partial(new_execution, journal.program, journal.flow_id))


async def _go_on_undoing(
    flow: BaseFlow, journal: Journal, table: dict[str, Any], new_execution: NewExecution, *, by_worker: bool
) -> RunFailed | RunCancelled:
    """Undo the nodes of a run that another runner has begun to undo, and return its end as an exception to raise."""
    async with _quarantine(journal.slot):
        await load_undoing(journal, table)
    if table["status"] == "running" and not table.get("interrupted") and not deaths.was_left_alive(journal.slot):
        await _count_recovery(flow, journal, table.get("recoveries", 0) + 1, new_execution)
    if by_worker and not deaths.begin_suspect(journal, journal.recoveries):
        raise RunBusy(journal.flow_id, 0.0)
    try:
        await begin(journal, table["undo"]["ends"], table["undo"]["reason"])
        run = new_execution(journal.program, journal.flow_id)
        return await execute_undo(run, journal, decided=table["status"] != "running")
    finally:
        deaths.end_suspect(journal)


def undone_error(flow_id: str) -> UsageError:
    """Return the error for a run that cannot go on where it failed, because its nodes were undone."""
    return UsageError(
        f"run {quoted(flow_id)} has failed and its completed nodes were undone, so it cannot go on where it stopped; "
        f"start a new run, or call flow.retry({quoted(flow_id)}, at=node) with the first node to run again"
    )


async def _take(
    journal: Journal, table: dict[str, Any], value: Any, new_execution: NewExecution, *, by_worker: bool
) -> dict[str, Any]:
    """Start a queued run."""
    if value is not ...:
        raise UsageError(f"run {quoted(journal.flow_id)} is queued and waits for no answer")
    async with _quarantine(journal.slot), _mark_stuck(journal, new_execution):
        params = await load_queued(journal, table)
    if "parent" in table and await children.is_cancelled(journal.slot.storage, table["parent"]):
        # It was submitted while its parent was cancelled.
        journal.mailbox.cancel = {"reason": f"its parent {quoted(table['parent'])} was cancelled"}
    _check_timeout(journal)
    await _obey(journal, by_worker, new_execution)
    if "partition" in table:
        await partitions.acquire(journal.slot, journal.flow_id, journal.flow, table)
    # With a delay, the time of its end; a run with a timeout has that as its deadline, too.
    slot = journal.slot
    delayed = slot.queue is None and slot.deadline is not None
    since = max(slot.written_at, slot.deadline if delayed and slot.deadline else 0.0)
    waited = max(slot.now - since, 0.0)
    await journal.begin(params, journal.keep, queued=True)
    return await execute(_began(new_execution(journal.program, journal.flow_id), journal, waited), journal, params)


def _began(run: Execution, journal: Journal, waited: float | None = None) -> Execution:
    """Give the first event of an execution what is known about the run. ``waited``: the seconds in its queue."""
    submitted = journal.submitted
    if run.on_begin is not None:
        run.on_begin(waited, journal.recoveries)
    run.beginning = {
        "waited": waited,
        "recoveries": journal.recoveries,
        "trace": submitted.get("trace"),
        "link": submitted.get("span"),
    }
    return run


def _check_timeout(journal: Journal) -> None:
    """Cancel a run whose timeout has passed."""
    left = journal.left()
    if left is not None and left <= 0:
        journal.time_out()


async def _obey(journal: Journal, by_worker: bool, new_execution: NewExecution) -> None:
    """Obey mail that has cancelled or paused a run before it was loaded. ``flow.resume()`` ends a pause."""
    if journal.mailbox.cancel is not None:
        raise await commit_cancelled(journal, partial(new_execution, journal.program, journal.flow_id))
    pauses = journal.mailbox.drop_pauses()
    journal.mailbox.pausing = False
    if pauses and by_worker:
        await lease.pause(journal.slot, pauses)
        await release(journal, ended=False)
        raise RunPaused(journal.flow_id, journal.positions[""])


async def _count_recovery(flow: BaseFlow, journal: Journal, recoveries: int, new_execution: NewExecution) -> None:
    """Count that the runner of a run has died; raise ``RunStuck`` if that was too often."""
    journal.recoveries = recoveries
    if recoveries > flow.max_recoveries:
        reason = f"its runner died {counted(recoveries, 'time')} at node {quoted(journal.positions[''])}"
        stuck = RunStuck(journal.flow_id, reason)
        await _stick(journal, reason, stuck, new_execution)
        raise stuck


@asynccontextmanager
async def _mark_stuck(journal: Journal, new_execution: NewExecution) -> AsyncIterator[None]:
    """Commit that a run is stuck if it turns out not to fit the flow any more."""
    try:
        yield
    except FlowChanged as changed:
        if changed.stuck:
            await _stick(journal, "; ".join(changed.differences), changed, new_execution)
        raise


async def _stick(journal: Journal, reason: str, error: FlowChanged | RunStuck, new_execution: NewExecution) -> None:
    """Commit that a run is stuck, log it, and emit its event."""
    await journal.stick(reason)
    await release(journal)
    logger.warning("run %s of flow %s is stuck: %s", quoted(journal.flow_id), quoted(journal.flow), reason)
    new_execution(journal.program, journal.flow_id).end("run.stuck", error=error)


@asynccontextmanager
async def _quarantine(slot: Slot) -> AsyncIterator[None]:
    """Copy the record to quarantine if it turns out to be damaged."""
    try:
        yield
    except RunReplaced:
        raise
    except CorruptRecord as error:
        await slot.quarantine(error)
        raise


def _missing(slot: Slot, flow_id: str) -> RunFinished | UnknownRun:
    return RunFinished(flow_id) if _finished_at(slot) is not None else UnknownRun(flow_id)


async def raise_missing(storage: Storage, flow_id: str) -> None:
    """Raise ``RunFinished`` or ``UnknownRun`` if the storage has no record of this run."""
    async with lease.hold(storage, flow_id, wait=lease.LEASE + 2) as slot:
        if not slot.found:
            raise _missing(slot, flow_id)


class _Finished(TypedDict):
    """The form of the memo of a run."""

    finished: float


def _finished_at(slot: Slot) -> float | None:
    """Return when the last run of this id finished, on the storage's clock; ``None`` if that is not known."""
    memo = slot.memo
    if memo is not None and conform(memo, _Finished)[1] is not None:
        slot.drop_memo()
        return None
    return None if memo is None else float(memo["finished"])
