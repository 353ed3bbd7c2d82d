"""Acts on a run from outside, even while a runner holds it: answers its waits, cancels, pauses and retries it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, get_args

from stepwell._secrets import quoted
from stepwell.codec import check_name
from stepwell.codec.effects import Effect
from stepwell.errors import (
    AlreadyHeld,
    Busy,
    EncodeError,
    FlowChanged,
    InvalidOption,
    LeaseLost,
    RunBusy,
    RunCancelled,
    RunFinished,
    RunStuck,
    StepwellError,
    StoredDataError,
    UnknownRun,
    Unstorable,
    UsageError,
)
from stepwell.nodes.control import moving, runs, undoing
from stepwell.nodes.control.fitting import fitting_answer, fitting_signal
from stepwell.nodes.effects import is_effect, opened_effects, row_of_effect
from stepwell.nodes.graph.building import NodeGraph
from stepwell.nodes.graph.plan import program_of
from stepwell.nodes.queue import children, partitions
from stepwell.nodes.run import lease, mail, monitor, waits
from stepwell.nodes.run.errors import failure_of
from stepwell.nodes.run.ids import WaitId, flow_of_wait
from stepwell.nodes.run.notices import ends_of, wake_waiters, wake_workers
from stepwell.nodes.run.reading import read_known_run
from stepwell.nodes.run.table import (
    FORMER,
    GRAPH,
    MAIL,
    REPLY,
    flow_index,
    held_table,
    owner_of_part,
    table_of,
    unpacked,
)
from stepwell.options import check_choice, check_instance, check_number, check_text, check_whole
from stepwell.record import RUNS, Place, Queue, Range, Stored
from stepwell.slot import Slot
from stepwell.storage import Storage
from stepwell.storage.operations import Get

if TYPE_CHECKING:
    from stepwell.nodes.graph.base import BaseFlow

__all__ = ["Retried", "answer", "cancel", "complete", "pause", "retry", "signal", "update"]

logger: logging.Logger = logging.getLogger(__name__)

#: The statuses of runs that can be retried.
Retried = Literal["failed", "stuck", "paused"]

#: The seconds for which ``complete`` waits for another call that holds the run.
COMPLETE_WAIT = 2.0
#: The first and the longest pause, in seconds, between two checks whether a run has ended.
_FIRST_POLL, _LONGEST_POLL = 0.01, 0.25


async def answer(flow: BaseFlow, given: str, value: Any, *, storage: Storage, by: str | None = None) -> waits.Answered:
    """Store the answer to a wait of a run, given by the id of the wait or of the run, unless it has one already."""
    flow_id = flow_of_wait(given) or given
    wait_id = None if flow_id == given else given
    refused = waits.Answered.ANSWERED_BEFORE
    check_text(by, "by={}: give the name of whoever answers, or None", optional=True)

    async def message_of(place: Place, table: dict[str, Any]) -> Mapping[str, Any] | None:
        nonlocal refused
        _check_flow(flow, flow_id, place, "answered")
        asked = None if wait_id is None else WaitId.read(wait_id)
        is_late = wait_id in table.get("late", ())
        refused = waits.Answered.TOO_LATE if is_late else waits.Answered.ANSWERED_BEFORE
        if asked is not None and asked.run != table.get("run", ""):
            raise RunFinished(flow_id, wait_id)
        if table["status"] == "finished" and wait_id is not None:
            return None
        _check_not_ended(flow_id, table)
        opened: dict[str, Any] = table.get("open", {})
        known = waits.questions(opened)
        meant = waits.only_wait(flow_id, opened) if wait_id is None else wait_id
        if meant is None:
            raise UsageError(f"run {quoted(flow_id)} waits for no answer")
        path = next((path for path, each in known.items() if meant == each), None)
        if path is None:
            assert wait_id is not None
            if asked is None or not await _was_asked(storage, flow_id, table, asked):
                raise waits.never_asked(flow_id, wait_id, opened)
            return None
        if await _has_answer(storage, flow_id, known[path]):
            return None
        fitting = fitting_answer(flow, flow_id, path, opened[path], value)
        _check_storable(storage, flow_id, path, fitting, "the answer")
        message = {"wait": known[path], "value": fitting}
        if by is not None:
            message["by"] = by
        until = opened[path]["until"]
        if until is None:
            return message
        now = await lease.clock(storage, flow_id)
        # An answer after the deadline is ignored, even if no worker has fired the timeout yet.
        if now < until:
            return {**message, "at": now}
        refused = waits.Answered.TOO_LATE
        return None

    return waits.Answered.ACCEPTED if await _send(storage, flow_id, "answer", message_of) else refused


async def _has_answer(storage: Storage, flow_id: str, wait_id: str) -> bool:
    """Return whether the mail of a run has an answer to a wait."""
    address = storage.address(RUNS, flow_id)
    stored: Stored | None = await storage.perform(Get(address, parts=Range.prefix(f"{MAIL}answer:")))
    seal = storage.seal(address)
    for name, text in ((stored and stored.parts) or {}).items():
        # The runner reports damaged mail.
        with suppress(StoredDataError):
            message = seal.value("p", name, text)
            if isinstance(message, dict) and message.get("wait") == wait_id:
                return True
    return False


async def signal(
    flow: BaseFlow, flow_id: str, name: str, value: Any, *, storage: Storage, reply: str | None = None
) -> None:
    """Store a signal for a run, which the next wait for it takes. ``reply``: the id of the reply to store."""
    check_text(name, "name={}: give the name of a signal")
    check_name("the signal", name)

    async def message_of(place: Place, table: dict[str, Any]) -> Mapping[str, Any] | None:
        _check_flow(flow, flow_id, place, "signalled")
        _check_not_ended(flow_id, table)
        waiting = list(waits.unanswered(table.get("open", {})).values())
        _check_signal(flow, name, [wait["signal"] for wait in waiting if "signal" in wait])
        fitting = fitting_signal(flow, flow_id, name, value)
        _check_storable(storage, flow_id, None, fitting, "the signal")
        message = {"name": name, "value": fitting} | ({} if reply is None else {"reply": reply})
        timed = any(wait["until"] is not None for wait in waiting if wait.get("signal") == name)
        return {**message, "at": await lease.clock(storage, flow_id)} if timed else message

    await _send(storage, flow_id, "signal", message_of)


async def update(
    flow: BaseFlow, flow_id: str, name: str, value: Any, *, timeout: float | None, storage: Storage
) -> Any:
    """Send a signal to a run, and return the reply of the wait that takes it."""
    check_number(timeout, "timeout={}: give a number of seconds above 0, or None", above=0, optional=True)
    # The replies of a run are ordered by their ids.
    reply = f"{time.time_ns() // 1_000_000:014d}{storage.ids()}"
    address, part = storage.address(RUNS, flow_id), f"{REPLY}{reply}"
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            with ends_of(storage, flow_id) as wait:
                await signal(flow, flow_id, name, value, storage=storage, reply=reply)
                pause = _FIRST_POLL
                while True:
                    stored: Stored | None = await storage.perform(Get(address, parts=(part,)))
                    if stored is not None and part in (stored.parts or {}):
                        return storage.seal(address).value("p", part, (stored.parts or {})[part])
                    await _check_replies(storage, flow_id, stored)
                    await wait(pause * storage.rng.uniform(0.8, 1.2))
                    pause = min(1.5 * pause, _LONGEST_POLL)
    except TimeoutError:
        if timeout is None or not limit.expired():
            raise
        raise TimeoutError(
            f"the update {quoted(name)} of run {quoted(flow_id)} has no reply after {timeout:g} s; it is stored, and "
            "the run takes it when it gets to a wait for it"
        ) from None


async def _check_replies(storage: Storage, flow_id: str, stored: Stored | None) -> None:
    """Raise the error of a run that has ended and replies to nothing any more."""
    if stored is None:
        raise RunFinished(flow_id)
    table = table_of(await storage.read_head(storage.address(RUNS, flow_id), stored), storage.address(RUNS, flow_id))
    if table is None:
        raise UnknownRun(flow_id, state_only=True)
    _check_not_ended(flow_id, table)
    if table["status"] == "failed":
        raise failure_of(flow_id, table)
    if table["status"] == "stuck":
        raise RunStuck(flow_id, table.get("stuck", "see flow.status()"))


def _check_signal(flow: BaseFlow, name: str, awaited: Collection[str]) -> None:
    """Raise ``InvalidOption`` if no node of the flow waits for a signal; ``awaited``: those it waits for now."""
    program = program_of(flow, without_loop=False, durable=True)
    nodes: list[Any] = [stage.node for stage in program.stages if stage.node._shape == "wait"]
    known: set[str] = {node.signal for node in nodes if node.signal is not None}
    known.update(awaited)
    if name in known:
        return
    near = get_close_matches(name, known, n=1)
    names = f"its signals are {', '.join(map(quoted, sorted(known)))}" if known else "it waits for no signals"
    hint = f"did you mean {quoted(near[0])}?" if near else names
    raise InvalidOption(f"no node of flow {quoted(flow._title())} waits for the signal {quoted(name)}; {hint}")


async def cancel(flow: BaseFlow, flow_id: str, reason: str | None, *, storage: Storage) -> None:
    """Cancel a run, and return when it has ended as cancelled; raise ``RunFinished`` if it finished before."""
    check_instance(reason, str, "reason={}: give a text, or None", optional=True)
    gives_up = handed_over = False

    async def message_of(place: Place, table: dict[str, Any]) -> Mapping[str, Any] | None:
        nonlocal gives_up
        _check_flow(flow, flow_id, place, "cancelled")
        gives_up = _cannot_be_undone(table)
        if table["status"] == "finished":
            raise RunFinished(flow_id)
        return None if table["status"] == "cancelled" else {"reason": reason}

    await _check_unreplaced(storage, flow_id)
    if not await _send(storage, flow_id, "cancel", message_of):
        return

    async def act(slot: Slot) -> None:
        nonlocal handed_over
        handed_over = await _cancel_held(slot, flow_id, reason, gives_up=gives_up)

    await _once_free(storage, flow_id, act)
    # An operator without the code of the flow leaves it to a worker.
    if handed_over and not (isinstance(flow, NodeGraph) and flow._start is None):
        await _undo(flow, flow_id, storage)


async def _undo(flow: Any, flow_id: str, storage: Storage) -> None:
    """Undo the nodes of a cancelled run here, or wait until a worker has."""
    while True:
        try:
            await runs.resume(flow, flow_id, ..., storage=storage, new_execution=flow._new_execution)
        except RunBusy:
            continue
        except RunCancelled:
            return


async def pause(flow: BaseFlow, flow_id: str, *, storage: Storage) -> None:
    """Pause a run, and return when it has stopped."""

    async def message_of(place: Place, table: dict[str, Any]) -> Mapping[str, Any] | None:
        _check_flow(flow, flow_id, place, "paused")
        return {} if _can_pause(table, flow_id) else None

    await _check_unreplaced(storage, flow_id)
    if not await _send(storage, flow_id, "pause", message_of):
        return
    await _once_free(storage, flow_id, lambda slot: _pause_held(slot, flow_id))


async def _once_free(storage: Storage, flow_id: str, act: Callable[[Slot], Awaitable[None]]) -> None:
    """Call ``act`` with the slot of a run as soon as its runner has released it."""
    pause = _FIRST_POLL
    while True:
        try:
            async with lease.hold(storage, flow_id, wait=0) as slot:
                await act(slot)
                return
        except AlreadyHeld:
            # A node acts on its own run, which obeys the mail when the node awaits something or has ended.
            return
        except (Busy, LeaseLost):
            await asyncio.sleep(pause * storage.rng.uniform(0.8, 1.2))
            pause = min(2 * pause, _LONGEST_POLL)


def _can_pause(table: Mapping[str, Any], flow_id: str) -> bool:
    """Return whether a run can be paused, or ``False`` if it is; raise if it has ended or failed."""
    _check_not_ended(flow_id, table)
    status = table["status"]
    if status in ("failed", "stuck"):
        raise UsageError(f"run {quoted(flow_id)} is {status}, so it does not continue unless it is resumed")
    return bool(status != "paused")


async def _pause_held(slot: Slot, flow_id: str) -> None:
    table = held_table(slot)
    if table is None:
        raise RunFinished(flow_id)
    _, pauses = await slot.parts_of_others(f"{MAIL}pause:")
    try:
        if not _can_pause(table, flow_id):
            return
    except StepwellError:
        # The run has ended or failed meanwhile. If it is retried, it must not pause.
        await slot.commit(dropped_parts=tuple(pauses))
        raise
    await lease.pause(slot, pauses)
    await children.release(slot.storage, slot.place.flow or "", flow_id, table, ended=False)


async def retry(
    flow: BaseFlow,
    flow_ids: Iterable[str] | None,
    status: Retried,
    limit: int | None,
    *,
    storage: Storage,
    at: moving.At | None = None,
) -> int:
    """Put failed, stuck or paused runs into their queue again, and return how many. ``at``: the node to begin with."""
    if at is not None and flow_ids is None:
        raise InvalidOption("at= moves the runs that you name: retry(flow_id, at=node)")
    check_choice(status, get_args(Retried), "status={}: choose 'failed', 'stuck' or 'paused'")
    check_whole(limit, "limit={}: give a whole number, or None", least=0, optional=True)
    if isinstance(flow_ids, str):
        flow_ids = [flow_ids]
    check_instance(flow_ids, Iterable, "flow_ids={}: give a list of ids, one id, or None", optional=True)
    retried = 0
    if flow_ids is not None:
        flow_ids = list(flow_ids)
        await _check_exist(storage, flow_ids)
        for flow_id in flow_ids:
            if limit is not None and retried >= limit:
                break
            one = len(flow_ids) == 1
            retried += await _retry(flow, flow_id, get_args(Retried), storage=storage, named=True, one=one, at=at)
        return retried
    async for run in monitor.runs(storage, flow._title(), status, revision=flow.revision):
        if limit is not None and retried >= limit:
            break
        retried += await _retry(flow, run.flow_id, (status,), storage=storage)
    return retried


async def _check_exist(storage: Storage, flow_ids: Iterable[str]) -> None:
    """Raise ``UnknownRun`` if there is no run of one of these ids; one that has finished may be gone."""
    unknown: list[UnknownRun] = []
    for flow_id in flow_ids:
        if await storage.perform(Get(storage.address(RUNS, flow_id))) is None:
            try:
                await runs.raise_missing(storage, flow_id)
            except RunFinished:
                pass
            except UnknownRun as error:
                unknown.append(error)
    if unknown:
        others = ", ".join(repr(each.flow_id) for each in unknown[1:])
        unknown[0].add_note(
            f"There is no run {others} either. No run was retried." if others else "No run was retried."
        )
        raise unknown[0]


async def _retry(
    flow: BaseFlow,
    flow_id: str,
    statuses: Collection[str],
    *,
    storage: Storage,
    named: bool = False,
    one: bool = False,
    at: moving.At | None = None,
) -> bool:
    """Put a run into its queue again.

    ``named``: raise ``UsageError`` if its parent was cancelled, else skip it. ``one``: raise it if the run was undone.
    """
    try:
        async with lease.hold(storage, flow_id, wait=0) as slot:
            table = held_table(slot)
            if table is None or table["status"] not in statuses:
                return False
            _check_flow(flow, flow_id, slot.place, "retried")
            if at is None and table["status"] == "failed" and "undone" in table:
                if one:
                    raise runs.undone_error(flow_id)
                logger.warning("run %s was not retried: its completed nodes were undone", quoted(flow_id))
                return False
            if "parent" in table and await children.is_cancelled(storage, table["parent"]):
                if named:
                    raise UsageError(
                        f"run {quoted(flow_id)} is a child of run {quoted(table['parent'])}, which was cancelled; "
                        f"start a new run of flow {quoted(flow._title())} instead"
                    )
                return False
            parts = None if at is None else await moving.move(flow, slot, at)
            # The calls whose outcome is unknown run again.
            unknown = [] if table["status"] != "stuck" else list(await _unknown_effects(slot))
            await lease.retry(slot, _queue_of(flow, slot, table), parts, dropped_parts=unknown)
    except (Busy, LeaseLost):
        # Another process resumes it. The claim is lost if this process was suspended.
        return False
    await _start_queued(flow, slot, table)
    return True


async def complete(flow: BaseFlow, flow_id: str, node: str, result: Any, item: int | None, *, storage: Storage) -> None:
    """Say what a call of a stuck run, whose outcome is unknown, has returned, and put the run into its queue again."""
    check_text(node, "node={}: give the path of the node")
    check_whole(item, "item={}: give the index of an item, or None", least=0, optional=True)
    try:
        async with lease.hold(storage, flow_id, wait=COMPLETE_WAIT) as slot:
            table = held_table(slot)
            if table is None:
                raise UnknownRun(flow_id, state_only=slot.found)
            _check_flow(flow, flow_id, slot.place, "completed")
            if table["status"] != "stuck":
                raise UsageError(
                    f"run {quoted(flow_id)} is {table['status']}; only a run that is stuck has calls whose outcome is "
                    "unknown"
                )
            effects = await _unknown_effects(slot)
            wanted = f"{node}:" if item is None else f"{node}:{_visit_of(effects, node)}.{item}."
            found = {name: each for name, each in effects.items() if name.partition(":")[2].startswith(wanted)}
            if len(found) != 1:
                raise UsageError(_not_one(flow_id, node, item, effects, several=bool(found)))
            ((name, effect),) = found.items()
            try:
                part = slot.seal_part(name, row_of_effect(effect.returned(result)))
            except EncodeError as error:
                raise Unstorable(node, "the result", error.type_name, error.why) from error
            await lease.retry(slot, _queue_of(flow, slot, table), parts={name: part})
    except Busy as busy:
        raise RunBusy(flow_id, COMPLETE_WAIT) from busy
    await _start_queued(flow, slot, table)


async def _unknown_effects(slot: Slot) -> dict[str, Effect]:
    """Return the calls of a held run whose outcome is unknown, by the names of their parts."""
    _, parts = await slot.parts_of_others("effect:")
    return {name: effect for name, effect in opened_effects(parts).items() if effect.unknown}


async def unknown_calls(storage: Storage, flow_id: str) -> list[str]:
    """Return the calls of a stored run whose outcome is unknown, each as a text; a retry makes them again."""
    run = await read_known_run(storage, flow_id, parts=True)
    seal = storage.seal(run.address)
    parts = {name: Effect.open(seal, name, text) for name, text in (run.stored.parts or {}).items() if is_effect(name)}
    return _places({name: effect for name, effect in parts.items() if effect.unknown})


def _visit_of(effects: Iterable[str], node: str) -> str:
    """Return the visit of a node that was interrupted."""
    return next((name.rpartition(":")[2].partition(".")[0] for name in effects if owner_of_part(name) == node), "")


def _not_one(flow_id: str, node: str, item: int | None, effects: Mapping[str, Effect], *, several: bool) -> str:
    """Return why a call whose outcome is unknown was not found."""
    places = _places(effects)
    known = f"unknown are {', '.join(places)}" if places else "the outcome of none of its calls is unknown"
    if several:
        return f"several calls of node {quoted(node)} of run {quoted(flow_id)} have no outcome; give item=: {known}"
    of_item = "" if item is None else f", item {item},"
    return f"run {quoted(flow_id)} has no call at node {quoted(node)}{of_item} without an outcome; {known}"


def _places(effects: Mapping[str, Effect]) -> list[str]:
    return [f"node {quoted(owner_of_part(name))}{_item_text(name)} ({each.name})" for name, each in effects.items()]


def _item_text(part: str) -> str:
    item = part.rpartition(":")[2].split(".")[1]
    return f", item {item}" if item else ""


def _queue_of(flow: BaseFlow, slot: Slot, table: Mapping[str, Any]) -> Queue:
    """Return the queue of a held run that a worker continues."""
    if "partition" in table:
        return partitions.queue_of(flow._title(), table["partition"])
    return Queue(flow_index(slot.place.flow or "", slot.place.revision or 1), table.get("priority", 0))


async def _start_queued(flow: BaseFlow, slot: Slot, table: Mapping[str, Any]) -> None:
    """Let a worker take a run that was put into its queue again."""
    if "partition" in table:
        await partitions.promote(slot.storage, flow._title(), table["partition"])
    wake_workers(slot.storage, flow_index(slot.place.flow or "", slot.place.revision or 1))


def _cannot_be_undone(table: Mapping[str, Any]) -> bool:
    """Return whether a run is stuck because an ``undo`` has failed."""
    return "undo" in table and table["status"] == "stuck"


async def _cancel_held(slot: Slot, flow_id: str, reason: str | None, *, gives_up: bool) -> bool:
    """Cancel a run without a runner; return whether its nodes are still to be undone.

    ``gives_up``: it was stuck before because an ``undo`` had failed, and is to end without the rest of them.
    """
    table = held_table(slot)
    if table is None or table["status"] == "finished":
        raise RunFinished(flow_id)
    if table["status"] == "cancelled":
        return False
    await children.cancel_all(slot.storage, flow_id, undoing.hand_over)
    if _cannot_be_undone(table) and not gives_up:
        raise RunStuck(flow_id, table.get("stuck", "see flow.status()"))
    if table.get("undos") and not gives_up:
        await undoing.hand_over(slot, reason)
        return True
    await lease.cancel(slot, reason)
    wake_waiters(slot.storage, flow_id)
    await children.release(slot.storage, slot.place.flow or "", flow_id, table)
    return False


async def _send(storage: Storage, flow_id: str, kind: mail.Kind, message_of: mail.LetterOf) -> bool:
    try:
        return await mail.send(storage, flow_id, kind, message_of)
    except UnknownRun as unknown:
        if not unknown.state_only:
            await runs.raise_missing(storage, flow_id)
        raise


async def _check_unreplaced(storage: Storage, flow_id: str) -> None:
    """Raise ``RunReplaced`` if the state of a run was replaced, because the record has no run any more."""
    with suppress(UnknownRun):
        # If there is no run, sending the mail finds out whether it has finished.
        await monitor.status(storage, flow_id)


def _check_flow(flow: BaseFlow, flow_id: str, place: Place, asked: str) -> None:
    if place.flow != flow._title():
        differs = f"it is a run of flow {quoted(place.flow)}, not of {quoted(flow._title())}"
        raise FlowChanged(flow_id, [differs], asked=asked)


async def _was_asked(storage: Storage, flow_id: str, table: dict[str, Any], asked: WaitId) -> bool:
    address = storage.address(RUNS, flow_id)
    stored = await storage.perform(Get(address, parts=True))
    if stored is None or GRAPH not in (stored.parts or {}):
        # It has ended since its table was read. An answer to a wait of a run that has ended is ignored.
        return True
    graph: dict[str, Any] = storage.seal(address).value("p", GRAPH, stored.parts[GRAPH])
    counts = zip(graph, unpacked(table["visits"], len(graph)), strict=False)
    visits = {path: count for path, count in counts if graph[path][0] == "wait"}
    if FORMER in stored.parts:
        visits |= storage.seal(address).value("p", FORMER, stored.parts[FORMER])["visits"]
    return waits.was_asked(table.get("open", {}), visits, asked)


def _check_storable(storage: Storage, flow_id: str, path: str | None, value: Any, what: str) -> None:
    """Raise ``Unstorable`` if a value cannot be stored. ``path``: the node that waits for it, ``None`` for a signal."""
    try:
        Slot(storage, RUNS, flow_id).seal_part("value", value)
    except EncodeError as error:
        inside = error.path.removeprefix("$value")
        signal_to = flow_id if path is None else None
        raise Unstorable(path or "", f"{what}{inside}", error.type_name, error.why, signal_to=signal_to) from error


def _check_not_ended(flow_id: str, table: Mapping[str, Any]) -> None:
    """Raise ``RunFinished`` or ``RunCancelled`` if a run has ended."""
    if table["status"] == "finished":
        raise RunFinished(flow_id)
    if table["status"] == "cancelled":
        raise RunCancelled(flow_id, table.get("cancelled") or None)
