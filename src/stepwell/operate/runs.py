"""One run of a node flow as an operator sees it, and its changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from stepwell import Limits, Storage
from stepwell.engine import RUNS, Address, Get, Stored, counted, encode_value, from_json, quoted
from stepwell.errors import Conflict, StepwellError, UnknownRun, UsageError, VersionChanged
from stepwell.nodes import Answered, NodeFlow, Run, RunHistory
from stepwell.nodes.engine import FINAL, OpenWait, flow_of_wait, history, status, table_of, unknown_calls
from stepwell.nodes.engine import answer as answer_wait
from stepwell.operate.audit import ChangedThing, record_change
from stepwell.operate.edits import Edit, edit
from stepwell.operate.masking import hidden_texts, masked, masked_field, masked_text
from stepwell.operate.record import parsed_version, version_text

__all__ = [
    "AlreadyAnswered",
    "RunRecord",
    "answer",
    "called_again",
    "cancel",
    "change_shared",
    "check_unchanged",
    "complete",
    "fork",
    "masked_run",
    "pause",
    "reason_of",
    "record_of_run",
    "retry",
    "retry_at",
    "secrets_of",
    "shared_of",
    "show_history",
    "show_run",
    "shown_value",
]


class AlreadyAnswered(Conflict):
    """A wait has an answer, or its time is over."""

    def __init__(self, flow_id: str, wait_id: str, answered: Answered) -> None:
        self.flow_id: str = flow_id
        self.wait_id: str = wait_id
        self.answered: Answered = answered
        why = "its time is over" if answered is Answered.TOO_LATE else "it was answered before"
        super().__init__(
            f"the question {quoted(wait_id)} of run {quoted(flow_id)} takes no answer: {why}; nothing was changed"
        )


class RunRecord(NamedTuple):
    """The record of a run: its version, and its place in a queue."""

    version: str
    #: The name of the queue that it is in.
    queue: str | None
    priority: int
    partition: str | None
    #: The id of the run that started it.
    parent: str | None
    #: When a worker continues it.
    due: float | None


async def show_run(storage: Storage, given: str) -> Run:
    """Return a run by its id or by the id of one of its waits, with masked errors; raise ``UnknownRun``."""
    flow_id = flow_of_wait(given) or given
    run = await status(storage, flow_id)
    address = storage.address(RUNS, flow_id)
    stored: Stored | None = await storage.perform(Get(address)) if run.errors or run.reason else None
    return masked_run(run, () if stored is None else secrets_of(storage, address, stored))


async def show_history(storage: Storage, flow_id: str) -> RunHistory:
    """Return the history of a run with masked texts; raise ``UnknownRun``."""
    found = await history(storage, flow_id)
    address = storage.address(RUNS, flow_id)
    stored: Stored | None = await storage.perform(Get(address)) if any(each.error for each in found) else None
    secrets = set() if stored is None else secrets_of(storage, address, stored)
    entries = [
        replace(
            each,
            action=each.action and masked_text(each.action),
            error=each.error and (each.error[0], masked_text(each.error[1], secrets)),
        )
        for each in found
    ]
    return RunHistory(tuple(entries), found.dropped)


def masked_run(run: Run, secrets: Iterable[str] = ()) -> Run:
    """Return a run with the secrets in the texts of its errors masked; ``secrets`` are the values of its own."""
    if not run.errors and run.reason is None:
        return run
    secrets = set(secrets)
    errors = (
        each._replace(message=masked_text(each.message, secrets), traceback=masked_text(each.traceback, secrets))
        for each in run.errors
    )
    return replace(run, reason=None if run.reason is None else masked_text(run.reason, secrets), errors=tuple(errors))


def secrets_of(storage: Storage, address: Address, stored: Stored) -> set[str]:
    """Return the texts and numbers in the shared state of a run that are masked."""
    return {
        text
        for name, value in _fields(storage, address, stored)
        for text in hidden_texts(value, masked_field(name, value))
    }


def _fields(storage: Storage, address: Address, stored: Stored) -> Iterator[tuple[str, Any]]:
    """Yield the readable fields of the shared state of a run, as JSON of the codec."""
    seal = storage.seal(address)
    for name, text in stored.fields.items():
        try:
            yield name, from_json(seal.body("f", name, text))
        except (StepwellError, ValueError):
            continue


def reason_of(run: Run) -> str | None:
    """Return why a run is as it is: why it was cancelled, is stuck or failed, or why it does not go on."""
    if run.reason is not None:
        return run.reason
    if run.status in ("failed", "stuck") and run.errors:
        error = run.errors[0]
        return f"{error.type}: {error.message}" if error.message else error.type
    if run.status not in FINAL and run.recoveries:
        return f"its runner died {counted(run.recoveries, 'time')} at this node"
    if run.undoing is not None:
        return f"its nodes are undone; then it is {run.undoing}"
    return "interrupted; the next worker continues it" if run.interrupted else None


async def record_of_run(storage: Storage, flow_id: str) -> RunRecord:
    """Return the version of a run's record, and its place in a queue; raise ``UnknownRun`` if there is none."""
    address = storage.address(RUNS, flow_id)
    stored: Stored | None = await storage.perform(Get(address))
    if stored is None:
        raise UnknownRun(flow_id)
    table = table_of(storage.seal(address).open_head(stored.head), address) or {}
    return RunRecord(
        version_text(stored.version),
        stored.queue.name if stored.queue else None,
        table.get("priority", 0),
        table.get("partition"),
        table.get("parent"),
        stored.deadline,
    )


async def check_unchanged(storage: Storage, flow_id: str, version: str) -> Run:
    """Return a run that has the version that was shown; raise ``VersionChanged`` if it has another one.

    A run that is running changes all the time and has no such check.
    """
    record = await record_of_run(storage, flow_id)
    run = await show_run(storage, flow_id)
    if run.status != "running" and record.version != version:
        raise VersionChanged(storage.address(RUNS, flow_id).text)
    return run


async def shared_of(storage: Storage, flow_id: str) -> dict[str, Any]:
    """Return the shared state of a run as JSON of the codec, with secrets masked and unreadable fields left out."""
    address = storage.address(RUNS, flow_id)
    stored: Stored | None = await storage.perform(Get(address))
    if stored is None:
        raise UnknownRun(flow_id)
    return {name: masked_field(name, value) for name, value in _fields(storage, address, stored)}


def shown_value(value: Any) -> Any:
    """Return a decoded value, such as a question, as JSON of the codec with its secrets masked."""
    return masked(from_json(encode_value(value, Limits())))


async def cancel(storage: Storage, given: str, reason: str | None, *, who: str) -> Run:
    """Cancel a run, wait until it has ended, and return it. The code of its flow is not needed."""
    run = await show_run(storage, given)
    await _stand_in(run).cancel(run.flow_id, reason, storage=storage)
    now = await show_run(storage, run.flow_id)
    after = {"status": now.status, **({} if reason is None else {"reason": reason})}
    await _record(storage, run, who, f"cancelled run {run.flow_id}", after)
    return now


async def pause(storage: Storage, given: str, *, who: str) -> Run:
    """Pause a run, wait until it has stopped, and return it. The code of its flow is not needed."""
    run = await show_run(storage, given)
    await _stand_in(run).pause(run.flow_id, storage=storage)
    now = await show_run(storage, run.flow_id)
    await _record(storage, run, who, f"paused run {run.flow_id}", {"status": now.status})
    return now


def wait_of(run: Run, given: str) -> OpenWait:
    """Return the open wait with this id, or the only one if ``given`` is the id of the run; raise ``UsageError``."""
    waits = [wait for wait in run.waits if wait.id and given in (wait.id, run.flow_id)]
    if not waits:
        raise UsageError(f"run {quoted(run.flow_id)} is {run.status} and does not wait for this answer")
    if len(waits) > 1:
        ids = ", ".join(wait.id for wait in waits)
        raise UsageError(f"run {quoted(run.flow_id)} has several open waits; give one of their ids: {ids}")
    return waits[0]


async def answer(storage: Storage, wait_id: str, value: Any, *, who: str) -> None:
    """Store the answer to a wait, given by its id; a worker continues the run. Raises ``AlreadyAnswered``."""
    run = await show_run(storage, wait_id)
    answered = await answer_wait(_stand_in(run), wait_id, value, storage=storage, by=who)
    if not answered:
        raise AlreadyAnswered(run.flow_id, wait_id, answered)
    await _record(storage, run, who, f"answered {wait_id} of run {run.flow_id}", {"answer": shown_value(value)})


async def retry(storage: Storage, run: Run, *, who: str) -> bool:
    """Put a failed, stuck or paused run into the queue again, and return whether it was; a worker continues it."""
    done = bool(await _stand_in(run).retry([run.flow_id], storage=storage))
    if done:
        await _record(storage, run, who, f"put run {run.flow_id} into the queue again", {"status": "queued"})
    return done


async def change_shared(storage: Storage, run: Run, changes: Edit, *, version: str, who: str) -> None:
    """Change fields of the shared state of a run that has the version which was shown, and does not run.

    Raises ``UsageError`` if it runs or has ended, ``VersionChanged`` if it has another version.
    """
    if run.status == "running":
        raise UsageError(
            f"run {quoted(run.flow_id)} is running, and its nodes change the shared state; pause it first, then change "
            "it and resume the run"
        )
    if run.status in FINAL:
        raise UsageError(f"run {quoted(run.flow_id)} is {run.status} and does not go on; fork it to change its state")
    address = storage.address(RUNS, run.flow_id)
    await edit(storage, address, changes, version=parsed_version(version), who=who)


async def retry_at(storage: Storage, flow: NodeFlow, run: Run, at: str, *, who: str) -> bool:
    """Put a failed, stuck or paused run into the queue again at another node, given by its path."""
    done = bool(await flow.retry([run.flow_id], at=at, storage=storage))
    if done:
        what = f"put run {run.flow_id} into the queue again at {at}"
        await _record(storage, run, who, what, {"status": "queued", "node": at})
    return done


async def fork(storage: Storage, flow: NodeFlow, run: Run, at: str, *, who: str) -> str:
    """Put a new run into the queue that begins at a node with the state of another run, and return its id."""
    handle = await flow.fork(run.flow_id, at=at, storage=storage)
    await _record(storage, run, who, f"forked run {run.flow_id} at {at} as {handle.id}", {"fork": handle.id})
    return handle.id


async def called_again(storage: Storage, run: Run) -> list[str]:
    """Return the calls of a run whose outcome is unknown, and that a retry makes again, each as a text."""
    return await unknown_calls(storage, run.flow_id) if run.status == "stuck" else []


async def complete(storage: Storage, run: Run, node: str, result: Any, item: int | None, *, who: str) -> None:
    """Say what a call of a stuck run has returned, whose outcome is unknown; a worker continues the run."""
    await _stand_in(run).complete(run.flow_id, node, result=result, item=item, storage=storage)
    await _record(storage, run, who, f"completed {node} of run {run.flow_id}", {"result": shown_value(result)})


async def _record(storage: Storage, run: Run, who: str, what: str, after: dict[str, Any]) -> None:
    before = {"status": run.status} if "status" in after else None
    await record_change(storage, who, what, ChangedThing("run", "", run.flow_id), before=before, after=after)


def _stand_in(run: Run) -> NodeFlow:
    """Return a flow with the name of the run's flow. What needs no nodes can be done with it."""
    return NodeFlow(name=run.flow)
