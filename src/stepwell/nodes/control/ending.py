"""Runs a durable run from its position in the journal, and commits its end."""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from stepwell._secrets import quoted
from stepwell.errors import (
    Conflict,
    LeaseLost,
    RunCancelled,
    RunFailed,
    RunPaused,
    RunStuck,
    StorageError,
    UnknownOutcome,
)
from stepwell.nodes.control import undoing
from stepwell.nodes.effects import unknown_in
from stepwell.nodes.events import current_trace
from stepwell.nodes.queue import children
from stepwell.nodes.run import deaths, lease
from stepwell.nodes.run.branch import Park
from stepwell.nodes.run.mail import topic_of
from stepwell.nodes.run.notices import wake_waiters, wake_workers
from stepwell.nodes.run.table import FINAL, flow_index, run_table, table_of
from stepwell.nodes.walk.on_error import attach
from stepwell.nodes.walk.runner import run_root
from stepwell.storage.transport.wakeups import add_listener

if TYPE_CHECKING:
    from stepwell.nodes.run.journal import Journal
    from stepwell.nodes.walk.execution import Execution

__all__ = ["commit_cancelled", "execute", "execute_undo", "release"]

logger: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")


async def execute(run: Execution, journal: Journal, params: Mapping[str, Any]) -> dict[str, Any]:
    """Run from the position in the journal, commit the end of the run, and wake the calls that wait for it."""
    async with _executing(run, journal):
        while True:
            try:
                await _run_to_end(run, journal, params)
            except Park:
                # The next execution links to this one.
                if (trace := current_trace()) is not None:
                    journal.submitted["span"] = trace
                if journal.handed_over and journal.mailbox.cancel is None:
                    run.end("run.parked", parked=await _last_commit(run, journal.hand_over()))
                    wake_workers(journal.slot.storage, flow_index(journal.flow, journal.revision))
                    return journal.shared
                parked = await _last_commit(run, journal.park())
                if parked is not None:
                    run.end("run.parked", parked=parked)
                    if isinstance(parked, RunPaused):
                        await release(journal, ended=False)
                    raise parked from None
                if journal.mailbox.cancel is not None:
                    raise await _end_cancelled(journal, run) from None
                # An answer has arrived meanwhile.
                continue
            return journal.shared


async def execute_undo(run: Execution, journal: Journal, *, decided: bool) -> RunFailed | RunCancelled:
    """Go on to undo the nodes of a run, and return its end as an exception to raise."""
    async with _executing(run, journal):
        undo = run_table(journal.slot)["undo"]
        ends = await undoing.go_on(journal, run, decided=decided)
        await release(journal)
    if ends == "cancelled":
        return RunCancelled(journal.flow_id, undo["reason"])
    _, node, kind, message, *_ = undo.get("cause", (0.0, "", "Exception", "unknown"))
    return RunFailed(journal.flow_id, node, kind, message, undone=True)


@asynccontextmanager
async def _executing(run: Execution, journal: Journal) -> AsyncIterator[None]:
    """Read mail while a run executes, and let a worker continue it if its call is cancelled."""
    slot = journal.slot
    stop_listening = add_listener(slot.storage.wake_key, topic_of(journal.flow_id), journal.mailbox.look_soon)
    slot.on_version = journal.mailbox.check_version
    lag = deaths.measure_lag()
    left = journal.left()
    timer = None if left is None else asyncio.get_running_loop().call_later(left, journal.time_out)
    try:
        yield
    except asyncio.CancelledError:
        await _interrupt(journal, run=run)
        raise
    except (Conflict, StorageError) as error:
        # A node that blocks the loop for longer than the lease would do so again, so it counts as a death.
        if error is journal.broken and not (isinstance(error, LeaseLost) and lag.blocked):
            deaths.leave_alive(journal.slot)
        raise
    finally:
        lag.end()
        if timer is not None:
            timer.cancel()
        slot.on_version = None
        stop_listening()
        journal.mailbox.stop()
        wake_waiters(slot.storage, journal.flow_id)


async def _run_to_end(run: Execution, journal: Journal, params: Mapping[str, Any]) -> None:
    run.visits = journal.visits.copy()
    if journal.mailbox.cancel is not None:
        # The commit before has found the mail.
        raise await _end_cancelled(journal, run)
    try:
        async with _Cancellable(journal, run):
            await run_root(journal.program.root, run, journal.shared, params, journal)
        await _last_commit(run, journal.finish())
    except (Park, RunCancelled):
        raise
    except Exception as error:
        if error is journal.broken and isinstance(error, Conflict | StorageError):
            # Another runner has the record, or the storage is unavailable.
            raise
        if isinstance(error, RunStuck) and not journal.slot.holding:
            # The run was cancelled, and its nodes cannot be undone.
            raise
        try:
            if (unknown := unknown_in(error)) is not None:
                await _stick(run, journal, unknown)
            await _fail(run, journal, error)
        except RunStuck as stuck:
            raise stuck from error
        except Exception as failure:  # noqa: BLE001 - it must not hide the error of the run
            # The run has not ended, so it keeps its partition.
            attach(error, [failure])
        else:
            await release(journal)
        raise
    await release(journal)
    run.end("run.finished")


async def _stick(run: Execution, journal: Journal, unknown: UnknownOutcome) -> None:
    """Commit that the outcome of an effect is unknown, and raise ``RunStuck``."""
    flow_id, node, item = journal.flow_id, unknown.node or "", unknown.item
    call = f"flow.complete({quoted(flow_id)}, {quoted(node)}, result=...{'' if item is None else f', item={item}'})"
    command = shlex.join(["stepwell", "complete", flow_id, node, *([] if item is None else ["--item", str(item)])])
    reason = (
        f"the outcome of {quoted(unknown.name)} in {unknown.place} is unknown: say what it was with {call} or "
        f"{command} --result ..., or let it run again with flow.retry({quoted(flow_id)})"
    )
    await journal.stick(reason)
    await release(journal)
    logger.warning("run %s of flow %s is stuck: %s", quoted(journal.flow_id), quoted(journal.flow), reason)
    stuck = RunStuck(journal.flow_id, reason)
    run.end("run.stuck", error=stuck)
    raise stuck


async def _fail(run: Execution, journal: Journal, error: Exception) -> None:
    """Commit that a run has failed, after its nodes were undone."""
    if journal.undos:
        await journal.note_failure(error)
        await undoing.begin(journal, "failed")
        await undoing.go_on(journal, run)
        return
    for path in await journal.fail(error):
        error.add_note(
            f"the answer to {quoted(path)} is stored: flow.resume({quoted(journal.flow_id)}) uses it again, "
            f"flow.resume({quoted(journal.flow_id)}, value) replaces it"
        )


async def release(journal: Journal, *, ended: bool = True) -> None:
    """Let the next run of the partition start, and wake the parent of a child that has ended."""
    if journal.submitted:
        await children.release(journal.slot.storage, journal.flow, journal.flow_id, journal.submitted, ended=ended)


class _Cancellable:
    """Cancels the task of a run within ``async with`` when mail cancels the run, and then raises ``RunCancelled``."""

    def __init__(self, journal: Journal, run: Execution) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._run = run
        self._journal, self._task, self._cancelling, self._requested = journal, task, task.cancelling(), False

    async def __aenter__(self) -> None:
        self._journal.mailbox.on_cancel = self._request

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        journal, task = self._journal, self._task
        journal.mailbox.on_cancel = None
        if journal.mailbox.cancel is None:
            return
        if self._requested:
            if getattr(task, "_must_cancel", False):
                # The run has ended without an await since the request.
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
            task.uncancel()
        cancelled = await _end_cancelled(journal, self._run)
        if task.cancelling() > self._cancelling:
            raise asyncio.CancelledError
        raise cancelled from None

    def _request(self) -> None:
        if not self._requested:
            self._requested = True
            self._task.cancel()


async def _end_cancelled(journal: Journal, run: Execution) -> RunCancelled:
    """Commit that mail has cancelled a run that executes, and return the exception to raise."""
    cancelled = await commit_cancelled(journal, lambda: run)
    if run.began:
        run.end("run.cancelled", error=cancelled)
    return cancelled


async def commit_cancelled(journal: Journal, execution: Callable[[], Execution]) -> RunCancelled:
    """Undo the nodes of a run that mail has cancelled, commit its end, and return the exception to raise."""
    assert journal.mailbox.cancel is not None
    cancelled = RunCancelled(journal.flow_id, journal.mailbox.cancel["reason"])
    if await journal.slot.reload():
        await children.cancel_all(journal.slot.storage, journal.flow_id, undoing.hand_over)
        if journal.undos:
            await undoing.begin(journal, "cancelled", cancelled.reason)
            await undoing.go_on(journal, execution())
        else:
            await lease.cancel(journal.slot, cancelled.reason)
        await release(journal)
    return cancelled


async def _interrupt(journal: Journal, *, run: Execution) -> None:
    """Let the next worker continue a run whose call was cancelled, or cancel the run too.

    Best effort: errors are logged, not raised.
    """
    try:
        if await journal.slot.reload():
            table = table_of(journal.slot.head, journal.slot.address)
            if not run.cancels:
                await lease.interrupt(journal.slot)
                wake_workers(journal.slot.storage, flow_index(journal.flow, journal.revision))
            elif table is not None and table["status"] not in FINAL:
                cancelled = RunCancelled(journal.flow_id, "its call was cancelled")
                await children.cancel_all(journal.slot.storage, journal.flow_id, undoing.hand_over)
                if table.get("undos"):
                    await undoing.hand_over(journal.slot, cancelled.reason)
                else:
                    await lease.cancel(journal.slot, cancelled.reason)
                    await release(journal)
                run.end("run.cancelled", error=cancelled)
    except Exception as error:  # noqa: BLE001 - the caller must get its cancellation
        logger.info(
            "run %s was interrupted (%s); a worker continues it when its lease has ended",
            quoted(journal.flow_id),
            error,
        )


async def _last_commit(run: Execution, commit: Coroutine[Any, Any, T]) -> T:
    """Await the last commit of a run; if it fails, the run has failed."""
    try:
        return await commit
    except BaseException as error:
        run.end("run.failed", error=error)
        raise
