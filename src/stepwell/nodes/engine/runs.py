"""Starts and resumes durable runs, and commits their end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, get_args

from stepwell.codec.values import conform
from stepwell.errors import (
    Busy,
    Conflict,
    CorruptRecord,
    FlowChanged,
    InvalidOption,
    RunBusy,
    RunCancelled,
    RunExists,
    RunFinished,
    RunPaused,
    RunReplaced,
    RunStuck,
    StorageError,
    UnknownRun,
    UsageError,
)
from stepwell.nodes.engine import children, lease, partitions, survivors, suspects, waits
from stepwell.nodes.engine.base_flow import apply_updates
from stepwell.nodes.engine.branch import Park
from stepwell.nodes.engine.ids import WaitId, flow_of_wait, new_flow_id
from stepwell.nodes.engine.journal import Journal
from stepwell.nodes.engine.mail import topic_of
from stepwell.nodes.engine.notices import wake_waiters
from stepwell.nodes.engine.on_error import attach
from stepwell.nodes.engine.plan import program_of
from stepwell.nodes.engine.run_format import ENDED, FINAL, Retention, table_of
from stepwell.nodes.engine.runner import run_root
from stepwell.nodes.engine.stored_run import load, load_queued
from stepwell.record import KEEP
from stepwell.slot import Slot
from stepwell.storage import Storage
from stepwell.storage.state_storage import default_storage, is_configured
from stepwell.storage.urls import as_storage
from stepwell.storage.wakeups import add_listener

if TYPE_CHECKING:
    from stepwell.nodes.engine.base_flow import BaseFlow
    from stepwell.nodes.engine.execution import Execution
    from stepwell.nodes.engine.plan import Program

__all__ = [
    "IfExists",
    "OnCancel",
    "OnPark",
    "check_unkept",
    "checked_retention",
    "raise_missing",
    "resume",
    "start",
    "storage_for",
    "storage_of",
]

logger: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")

IfExists = Literal["raise", "resume"]
#: What to do with a durable run whose call is cancelled: let a worker continue it, or cancel it.
OnCancel = Literal["interrupt", "cancel"]
#: What a call does when its run parks: raise ``Parked``, or return a handle.
OnPark = Literal["raise", "return"]
NewExecution = Callable[["Program", str], "Execution"]

#: The statuses of runs that a worker may continue.
_TAKEN_BY_WORKERS = frozenset({"queued", "running", "parked", "sleeping"})
#: Seconds after which a call logs that it waits for another runner.
NOTICE = 1.0


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
    if if_exists not in get_args(IfExists):
        raise InvalidOption(f"if_exists={if_exists!r}: choose 'raise' or 'resume'")
    program = program_of(flow, without_loop=False, durable=True)
    if flow_id is None:
        flow_id = new_flow_id(flow._title())
    run = new_execution(program, flow_id)
    loop = asyncio.get_running_loop()
    asked_at, wait = loop.time(), 0.0 if if_exists == "raise" else lease.LEASE + 2
    notice = _announce(flow_id, wait)
    try:
        async with lease.hold(storage, flow_id, wait=wait) as slot:
            if notice is not None:
                notice.cancel()
            if slot.found:
                if if_exists == "raise":
                    await slot.confirm()
                    async with _quarantine(slot):
                        raise RunExists(flow_id, state_only=table_of(slot.place, slot.address) is None)
                return await _continue(flow, slot, flow_id, wait_id=None, value=..., new_execution=new_execution)
            # With "raise" the call does not wait.
            finished_at = None if if_exists == "raise" else _finished_at(slot)
            if finished_at is not None and finished_at > slot.now - (loop.time() - asked_at):
                # The run has finished while this call waited for it.
                await slot.confirm()
                raise RunFinished(flow_id)
            journal = Journal(slot, program, flow._title(), flow_id, shared)
            await journal.begin(params, keep)
            return await _run(run, journal, params)
    except RunBusy:
        raise
    except Busy as busy:
        raise (RunExists(flow_id) if if_exists == "raise" else RunBusy(flow_id, wait)) from busy
    finally:
        if notice is not None:
            notice.cancel()


async def resume(
    flow: BaseFlow,
    given: str,
    value: Any,
    *,
    storage: Storage,
    new_execution: NewExecution,
    wait: float | None = None,
    by_worker: bool = False,
) -> dict[str, Any]:
    """Resume a run, given by its id or by the id of one of its waits.

    ``by_worker``: raise ``RunFinished`` if the run has ended, is paused, or needs a call of ``flow.resume()``.
    """
    flow_id = flow_of_wait(given)
    wait_id = None if flow_id is None else given
    flow_id = flow_id or given
    # Longer than the lease of a runner that has just died.
    wait = lease.LEASE + 2 if wait is None else wait
    notice = _announce(flow_id, wait)
    try:
        async with lease.hold(storage, flow_id, wait=wait) as slot:
            if notice is not None:
                notice.cancel()
            return await _continue(
                flow,
                slot,
                flow_id,
                wait_id=wait_id,
                value=value,
                new_execution=new_execution,
                by_worker=by_worker,
            )
    except RunBusy:
        raise
    except Busy as busy:
        raise RunBusy(flow_id, wait, answer=value is not ...) from busy
    finally:
        if notice is not None:
            notice.cancel()


def _announce(flow_id: str, wait: float) -> asyncio.TimerHandle | None:
    """Log after a second that a call waits for a run that another runner holds."""
    if wait <= NOTICE:
        return None
    text = "run %r is held by another runner; waiting up to %g s until it parks or ends, or its lease ends if it died"
    return asyncio.get_running_loop().call_later(NOTICE, logger.warning, text, flow_id, wait)


async def _continue(
    flow: BaseFlow,
    slot: Slot,
    flow_id: str,
    *,
    wait_id: str | None,
    value: Any,
    new_execution: NewExecution,
    by_worker: bool = False,
) -> dict[str, Any]:
    # Some results below come from the record of an earlier runner, which must be durable before they are returned.
    await slot.confirm()
    if not slot.found:
        raise _missing(slot, flow_id)
    async with _quarantine(slot):
        table = table_of(slot.place, slot.address)
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
            await slot.commit(deadline=None, queue=None, force=True)
        raise RunFinished(flow_id)
    if table["status"] == "cancelled":
        raise RunCancelled(flow_id, table.get("cancelled") or None)
    if table["status"] == "finished":
        if value is not ... and wait_id is None:
            raise RunFinished(flow_id)
        return dict(slot.data)
    program = program_of(flow, without_loop=False, durable=True)
    journal = Journal(slot, program, flow._title(), flow_id, dict(slot.data))
    if table.get("before", table["status"]) == "queued":
        return await _take(journal, table, value, new_execution, by_worker=by_worker)
    async with _quarantine(slot), _mark_stuck(journal):
        params = await load(journal)
    await _obey(journal, by_worker)
    if table["status"] == "running" and not table.get("interrupted") and not survivors.returned(journal):
        await _count_recovery(flow, journal, table.get("recoveries", 0) + 1)
    if wait_id is not None:
        waits.check_wait(journal, wait_id, asked)
    waits.deliver(journal)
    if value is not ...:
        waits.answer(journal, wait_id, value)
    if "partition" in table and table["status"] not in partitions.HOLDING:
        # Also if it only waits again: a run keeps its partition while it waits.
        await partitions.acquire(slot, flow_id, journal.flow, flow.revision, table)
    ready = journal.overdue or any(waits.has_answer(inside) for inside in journal.open.values())
    if journal.rechecks and (not by_worker or min(until for _, until in journal.rechecks.values()) <= slot.now):
        # Items of a batch wait for other runs, which may have ended.
        ready = True
    if journal.status in ("parked", "sleeping") and not ready:
        if table["status"] in ("parked", "sleeping") and (slot.deadline is None or slot.deadline > slot.now):
            raise waits.parked(journal)
        # A stuck, paused or retried run waits as before. Otherwise mail that answers no wait has set the deadline to
        # the past, and must not wake workers again.
        parked = await journal.park()
        if parked is not None:
            raise parked
        if journal.cancel is not None:
            raise await _cancelled(journal)
    if by_worker and not suspects.enter(journal):
        raise RunBusy(flow_id, 0.0)
    try:
        journal.status = "running"
        await journal.save(slot.state or "", queue=KEEP if slot.queue is None else None)
        return await _run(new_execution(program, flow_id), journal, params)
    finally:
        suspects.leave(journal)


async def _take(
    journal: Journal, table: dict[str, Any], value: Any, new_execution: NewExecution, *, by_worker: bool
) -> dict[str, Any]:
    """Start a queued run."""
    if value is not ...:
        raise UsageError(f"run {journal.flow_id!r} is queued and waits for no answer")
    async with _quarantine(journal.slot), _mark_stuck(journal):
        params = await load_queued(journal, table)
    if "parent" in table and await children.is_cancelled(journal.slot.storage, table["parent"]):
        # It was submitted while its parent was cancelled.
        journal.cancel = {"reason": f"its parent {table['parent']!r} was cancelled"}
    await _obey(journal, by_worker)
    if "partition" in table:
        revision = journal.slot.place.revision or 1
        await partitions.acquire(journal.slot, journal.flow_id, journal.flow, revision, table)
    await journal.begin(params, journal.keep, queued=True)
    return await _run(new_execution(journal.program, journal.flow_id), journal, params)


async def _obey(journal: Journal, by_worker: bool) -> None:
    """Obey mail that has cancelled or paused a run before it was loaded. ``flow.resume()`` ends a pause."""
    if journal.cancel is not None:
        raise await _cancelled(journal)
    pauses = journal.drop_pauses()
    journal.pausing = False
    if pauses and by_worker:
        await lease.pause(journal.slot, pauses)
        await _release(journal, ended=False)
        raise RunPaused(journal.flow_id, journal.positions[""])


async def _count_recovery(flow: BaseFlow, journal: Journal, recoveries: int) -> None:
    """Count that the runner of a run has died; raise ``RunStuck`` if that was too often."""
    journal.recoveries = recoveries
    if recoveries > flow.max_recoveries:
        reason = f"its runner died {recoveries} times at node {journal.positions['']!r}"
        await journal.stick(reason)
        await _release(journal)
        raise RunStuck(journal.flow_id, reason)


@asynccontextmanager
async def _mark_stuck(journal: Journal) -> AsyncIterator[None]:
    """Commit that a run is stuck if it turns out not to fit the flow any more."""
    try:
        yield
    except FlowChanged as changed:
        if changed.stuck:
            await journal.stick("; ".join(changed.differences))
            await _release(journal)
        raise


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


async def _run(run: Execution, journal: Journal, params: Mapping[str, Any]) -> dict[str, Any]:
    """Run from the position in the journal, commit the end of the run, and wake the calls that wait for it."""
    slot = journal.slot
    stop_listening = add_listener(slot.storage.wake_key, topic_of(journal.flow_id), journal.check_mail)
    slot.on_version = journal.check_version
    try:
        while True:
            try:
                await _run_to_end(run, journal, params)
            except Park:
                parked = await _last_commit(run, journal.park())
                if parked is not None:
                    run.end("run.parked", parked=parked)
                    if isinstance(parked, RunPaused):
                        await _release(journal, ended=False)
                    raise parked from None
                if journal.cancel is not None:
                    raise await _cancelled(journal, run) from None
                # An answer has arrived meanwhile.
                continue
            return journal.shared
    except asyncio.CancelledError:
        await _interrupt(journal, run=run)
        raise
    except (Conflict, StorageError) as error:
        if error is journal.broken:
            survivors.leave(journal)
        raise
    finally:
        slot.on_version = None
        stop_listening()
        journal.stop_reading()
        wake_waiters(slot.storage, journal.flow_id)


async def _run_to_end(run: Execution, journal: Journal, params: Mapping[str, Any]) -> None:
    root = journal.program.root
    run.visits = journal.visits.copy()
    if journal.cancel is not None:
        # The commit before has found the mail.
        raise await _cancelled(journal, run)
    try:
        async with _Cancellable(journal, run):
            result = await run_root(root, run, journal.shared, params, journal)
        if isinstance(result, tuple):
            apply_updates(root, result, journal.shared)
        await _last_commit(run, journal.finish())
    except (Park, RunCancelled):
        raise
    except Exception as error:
        if error is journal.broken and isinstance(error, Conflict | StorageError):
            # Another runner has the record, or the storage is unavailable.
            raise
        try:
            for path in await journal.fail():
                error.add_note(
                    f"the answer to {path!r} is stored: flow.resume({journal.flow_id!r}) uses it again, "
                    f"flow.resume({journal.flow_id!r}, value) replaces it"
                )
        except Exception as failure:  # noqa: BLE001 - it must not hide the error of the run
            # The run has not ended, so it keeps its partition.
            attach(error, [failure])
        else:
            await _release(journal)
        raise
    await _release(journal)
    run.end("run.finished")


async def _release(journal: Journal, *, ended: bool = True) -> None:
    """Let the next run of the partition start, and wake the parent of a child that has ended."""
    if journal.submitted:
        storage, submitted = journal.slot.storage, journal.submitted
        await children.release(storage, journal.flow, journal.revision, submitted, journal.flow_id, ended=ended)


class _Cancellable:
    """Cancels the task of a run within ``async with`` when mail cancels the run, and then raises ``RunCancelled``."""

    def __init__(self, journal: Journal, run: Execution) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._run = run
        self._journal, self._task, self._cancelling, self._requested = journal, task, task.cancelling(), False

    async def __aenter__(self) -> None:
        self._journal.on_cancel = self._request

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        journal, task = self._journal, self._task
        journal.on_cancel = None
        if journal.cancel is None:
            return
        if self._requested:
            if getattr(task, "_must_cancel", False):
                # The run has ended without an await since the request.
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
            task.uncancel()
        cancelled = await _cancelled(journal, self._run)
        if task.cancelling() > self._cancelling:
            raise asyncio.CancelledError
        raise cancelled from None

    def _request(self) -> None:
        if not self._requested:
            self._requested = True
            self._task.cancel()


async def _cancelled(journal: Journal, run: Execution | None = None) -> RunCancelled:
    """Commit that mail has cancelled the run, and return the exception to raise; ``run`` is its execution, if any."""
    assert journal.cancel is not None
    cancelled = RunCancelled(journal.flow_id, journal.cancel["reason"])
    if await journal.slot.reload():
        await children.cancel(journal.slot, journal.flow_id, cancelled.reason)
        await _release(journal)
    if run is not None and run.began:
        run.end("run.cancelled", error=cancelled)
    return cancelled


async def _interrupt(journal: Journal, *, run: Execution) -> None:
    """Let the next worker continue a run whose call was cancelled, or cancel the run too.

    Best effort: errors are logged, not raised.
    """
    try:
        if await journal.slot.reload():
            table = table_of(journal.slot.place, journal.slot.address)
            if not run.cancels:
                await lease.interrupt(journal.slot)
            elif table is not None and table["status"] not in FINAL:
                cancelled = RunCancelled(journal.flow_id, "its call was cancelled")
                await children.cancel(journal.slot, journal.flow_id, cancelled.reason)
                await _release(journal)
                run.end("run.cancelled", error=cancelled)
    except Exception as error:  # noqa: BLE001 - the caller must get its cancellation
        logger.info(
            "run %r was interrupted (%s); a worker continues it when its lease has ended", journal.flow_id, error
        )


async def _last_commit(run: Execution, commit: Coroutine[Any, Any, T]) -> T:
    """Await the last commit of a run; if it fails, the run has failed."""
    try:
        return await commit
    except BaseException as error:
        run.end("run.failed", error=error)
        raise


@asynccontextmanager
async def storage_for(flow: BaseFlow, storage: Storage | str | None) -> AsyncIterator[Storage]:
    """Yield the storage for one call, and close it at the end if it was given as a URL.

    Raise ``InvalidOption`` if there is none, because a run in the memory of this process would be lost with it.
    """
    if storage is None and flow.storage is None and not is_configured():
        raise InvalidOption(
            f"flow {flow._title()!r} has no storage: give NodeFlow(..., storage=...), stepwell.configure(storage=...), "
            "or storage=... with this call"
        )
    found = storage_of(flow, storage)
    try:
        yield found
    finally:
        if isinstance(storage, str):
            await found.close()


def storage_of(flow: BaseFlow, storage: Storage | str | None) -> Storage:
    """Return the given storage, else that of the flow, else the configured one."""
    return as_storage(storage) if storage is not None else flow.storage or default_storage()


def check_unkept(if_exists: IfExists, keep: Retention | None, on_cancel: OnCancel, on_park: OnPark) -> None:
    """Raise ``InvalidOption`` if a run without a storage has an option that needs one."""
    if if_exists != "raise" or keep or on_cancel != "interrupt" or on_park != "raise":
        options = {"keep": keep or None, "on_cancel": on_cancel, "on_park": on_park, "if_exists": if_exists}
        defaults = (None, "interrupt", "raise", "raise")
        changed = next(name for name, usual in zip(options, defaults, strict=True) if options[name] != usual)
        raise InvalidOption(f"{changed}={options[changed]!r} needs a storage: run(shared, storage=...)")


def checked_retention(keep: Retention) -> Retention:
    """Return ``keep``; raise ``InvalidOption`` unless it is a bool or a number of seconds."""
    if isinstance(keep, bool) or (isinstance(keep, int | float) and 0 < keep < float("inf")):
        return keep
    raise InvalidOption(f"keep={keep!r}: give True, False or a number of seconds above 0")
