"""The journal of one durable run: its position in memory, committed to its record after each node.

The flow of the record is the name of the flow, its state the path of the next node, its data the shared state. A small
table beside them (:meth:`Journal._fill`) has the rest of the position and is written with every commit. Large values
(items, results, the fields of branches) are parts. Each part is written once, and dropped when its node completes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from stepwell._secrets import quoted
from stepwell.codec import values
from stepwell.errors import (
    EncodeError,
    LeaseLost,
    Parked,
    RecordReplaced,
    RunPaused,
    StepwellError,
    Unstorable,
    VersionChanged,
)
from stepwell.nodes.effects import RunEffects, is_effect
from stepwell.nodes.graph.loaded import loaded_at
from stepwell.nodes.graph.shape import Shape, check_renamed
from stepwell.nodes.history import BEFORE, HISTORY, LONGEST_BEFORE, PARTS, TRAIL, VALUES, WITH_VALUES, Recorder, shown
from stepwell.nodes.run import deaths, lease
from stepwell.nodes.run.errors import RunErrors
from stepwell.nodes.run.mailbox import Mailbox
from stepwell.nodes.run.parts import RunParts
from stepwell.nodes.run.streams import StreamWriter
from stepwell.nodes.run.table import (
    PARAMS,
    REPLY,
    UNDO,
    Retention,
    Status,
    end_timers,
    packed,
    run_table,
    set_table,
    submitted_of,
    timeout_timer,
)
from stepwell.nodes.run.waits import asked_again, has_answer, is_child_wait, questions, unanswered, waits_for
from stepwell.record import KEEP, Keep, Place, Version
from stepwell.slot import Changes, Sealed, Slot

if TYPE_CHECKING:
    from stepwell.nodes.graph.base import BaseFlow
    from stepwell.nodes.graph.plan import Program

__all__ = ["Journal"]

logger: logging.Logger = logging.getLogger(__name__)

#: How many of the last replies to updates are stored.
REPLIES = 20
#: The deadline of a running run with the usual lease, in seconds; renewed at half of it. After it, workers check
#: whether its runner died.
WATCH = 12.0


#: The shortest and the longest pause, in seconds, before the items of a batch that wait for other runs run again.
RECHECKS = 1.0, 60.0


class Journal:
    """The position of one run, in memory and in its record.

    Branches change it between two awaits, so it is consistent whenever :meth:`save` writes it for all of them.
    """

    def __init__(self, slot: Slot, program: Program, flow: str, flow_id: str, shared: dict[Any, Any]) -> None:
        self.slot: Slot = slot
        self.flow_id: str = flow_id
        self.parts: RunParts = RunParts(slot)
        self.mailbox: Mailbox = Mailbox(slot, self.parts, flow_id)
        self.effects: RunEffects = RunEffects(
            self.parts,
            slot.storage.seal(slot.address),
            flow_id,
            save=self.save_effects,
            loop=lambda: slot.storage.loop,
        )
        self.errors: RunErrors = RunErrors(self.now)
        self.program = program
        self.flow = flow
        #: The shared state.
        self.shared = shared
        self.status: Status = "running"
        self.keep: Retention = False
        self.started_at: float = 0.0
        #: Part of the ids of its waits, to distinguish runs of the same id.
        self.mark: str = ""
        #: The partition and the priority of a submitted run, as they are stored.
        self.submitted: dict[str, Any] = {}
        assert program.root.graph is not None
        assert program.root.graph.start is not None
        #: The path of the next node of each branch. The main branch is "".
        self.positions: dict[str, str] = {"": program.root.graph.start.path}
        #: The progress inside a node, by its path, and the last action of flows and branches that have ended.
        self.open: dict[str, Any] = {}
        #: How often each stage was visited, by its index. A visit counts once its node has completed.
        self.visits: list[int] = [0] * len(program.stages)
        #: The shared state after ``prep`` of a flow that was entered since the last commit.
        self.entered: dict[Any, Any] | None = None
        #: The waits whose deadline has passed.
        self.overdue: set[str] = set()
        #: For each batch with items that wait for other runs: since when, and when to run these items again.
        self.rechecks: dict[str, Any] = {}
        #: How often the runner has died since the last node completed.
        self.recoveries: int = 0
        #: The last error that an edge has caught in each branch: path, type and message.
        self.caught: dict[str, list[str]] = {}
        #: How many visits of nodes can be undone.
        self.undos: int = 0
        #: The parts of those that may not be stored yet.
        self.unsure_undos: dict[str, Sealed] = {}
        #: Its worker stops, and the next one continues it.
        self.handed_over: bool = False
        #: The ids of waits that have timed out, the last one last.
        self.late: list[str] = []
        #: When the deadline of the run must be written again, on the monotonic clock.
        self._watched_until = 0.0
        #: Longer than the lease, which a worker may have set.
        self._watch_for = WATCH * slot.lease_seconds / lease.LEASE
        self._saving = False
        self._waiters: list[asyncio.Future[None]] = []
        self._changes = self._saved = 0
        self._stream: StreamWriter | None = None
        #: The error of a failed commit.
        self.broken: Exception | None = None
        self._clock_at, self._clock_base = monotonic(), slot.now
        #: The start of the run on the monotonic clock of this process.
        self.began: float = 0.0
        self.shape: Shape = program.shape
        self.digest: str = program.digest
        root = cast("BaseFlow", program.root.node)
        self.revision: int = root.revision
        self._revision = None if root.revision == 1 else root.revision
        #: When this process loaded the graph, on the storage's clock.
        self.since: float = round(slot.now - (monotonic() - loaded_at(root, self.digest)), 3)
        #: The visits of paths that the graph does not have any more, or has with another kind of node.
        self.former: dict[str, int] = {}
        self.history: Recorder = Recorder(root._detail)
        #: Whether the history has the values of nodes; and what ``prep`` and ``exec`` of the last one have returned.
        self.keeps_values: bool = root._detail == "values"
        self.last_values: tuple[Any, Any] | None = None
        #: For how many seconds the run was queued, paused or slept since the last node.
        self._idle: dict[str, float] = {}

    async def begin(self, params: Mapping[str, Any], keep: Retention, *, queued: bool = False) -> None:
        """Write the start row; ``queued``: over that of a queued run, which leaves its queue and has its params."""
        self.keep, self.started_at, self.began = keep, self.now(), monotonic()
        self.mark = self.slot.storage.ids()[-8:]
        self.parts.put("", "graph", "", self.shape)
        if renamed := cast("BaseFlow", self.program.root.node).renamed:
            check_renamed(self.flow, renamed, self.shape)
            # A new run has the new names.
            self.parts.put("", "former", "", {"visits": {}, "renamed": sorted(renamed)})
        if params and queued:
            self.parts.loaded[""][PARAMS] = params
        elif params:
            self.parts.put("", "params", "", dict(params))
        await self.save("", memo=KEEP if self.slot.memo is None else None, queue=None)

    def restore_submitted(self, table: Mapping[str, Any]) -> None:
        """Take over how a queued run was submitted."""
        self.keep, self.submitted = table.get("keep", False), submitted_of(table)

    def restore(self, table: Mapping[str, Any]) -> None:
        """Take over what :meth:`_fill` has stored, without the position, which may not fit the graph any more."""
        self.restore_submitted(table)
        self.status, self.started_at = table.get("before", table["status"]), table["started"]
        self.began = monotonic() - (self.slot.now - self.started_at)
        self.mark, self.rechecks = table.get("run", ""), dict(table.get("rechecks", {}))
        self.errors.rows.extend(reversed(table.get("errors", ())))
        self.history.restore(table)
        self.note_idle(table)
        self.late.extend(table.get("late", ()))
        self.undos = table.get("undos", 0)
        self.caught = {branch: error for branch, *error in table.get("caught", ())}

    def _fill(self, *, idle: bool = False) -> None:
        """Copy the position of the run to its slot: the next node, the last ones, and the table."""
        slot = self.slot
        table: dict[str, Any] = {
            "status": self.status,
            "graph": self.digest,
            "visits": packed(self.visits),
            "started": self.started_at,
            "since": self.since,
        }
        if idle:
            table["idle"] = self.now()
        if self.mark:
            table["run"] = self.mark
        if slot.base:
            # status() compares it, to detect that the record was replaced.
            table["base"] = slot.base
        if self.keep:
            table["keep"] = self.keep
        if self.submitted:
            table.update(self.submitted)
        if self.rechecks:
            table["rechecks"] = dict(self.rechecks)
        if self.recoveries:
            table["recoveries"] = self.recoveries
        if self.handed_over:
            table["interrupted"] = True
        if self.open:
            table["open"] = dict(self.open)
        if self.late:
            table["late"] = self.late[-TRAIL:]
        if self.undos:
            table["undos"] = self.undos
        if self.caught:
            table["caught"] = [[branch, *error] for branch, error in self.caught.items()]
        if len(self.positions) > 1:
            table["lines"] = {name: path for name, path in self.positions.items() if name}
        if self.errors.rows:
            table["errors"] = self.errors.newest_first()
        slot.data = dict(self.shared)
        history = self.history
        if history.trail:
            table["trail"] = list(history.trail)
            if history.detail is not None:
                table["count"], table["steps"] = history.count, list(history.steps)
                if self.keeps_values:
                    table["values"] = True
        slot.place = Place(self.flow, self.positions[""] or None, self._revision)
        set_table(slot, table)

    async def save(
        self,
        node: str,
        *,
        memo: Any = KEEP,
        queue: Keep | None = KEEP,
        between_nodes: bool = True,
        only_effects: bool = False,
    ) -> None:
        """Commit the position; ``node`` is the node that has just completed, for errors, empty at the start.

        ``between_nodes``: no node or branch runs, so the shared state gets the fields that others have merged.
        ``only_effects``: commit the effects that are not stored yet, and nothing else, because the node that has called
        them runs, and its changes of the shared state are not complete.
        """
        self._changes += 1
        mine = self._changes
        while self._saving:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
            if self._saved >= mine:
                # The save of another branch has written this change too.
                return
        if self._is_cancelled():
            # The node has suppressed the cancellation, or does not await anything.
            raise asyncio.CancelledError
        if self.broken is not None:
            # The changes of a failed commit are missing, so no later commit may follow it.
            raise self.broken
        if only_effects and not any(part is not None and is_effect(name) for name, part in self.parts.pending.items()):
            # The effects of another branch or item were written together with these.
            return
        self._saving, saving = True, self._changes
        try:
            if only_effects:
                await self._commit_effects(node)
            else:
                self._fill()
                await self._commit(node, keep=True, timers=self._watch(), memo=memo, queue=queue)
                self._saved, self.entered = saving, None
            version, known = self.slot.version, self.mailbox.version
            others_wrote = known is not None and (version is None or version.number != known.number + 1)
            if others_wrote:
                await self.mailbox.look()
            else:
                self.mailbox.version = version
            if between_nodes and self.mailbox.unmerged:
                await self._look_for_fields()
        finally:
            self._saving = False
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters.clear()
        if others_wrote and self._is_cancelled():
            raise asyncio.CancelledError

    async def save_effects(self, node: str) -> None:
        """Commit the effects that are not stored yet, and nothing else."""
        await self.save(node, between_nodes=False, only_effects=True)

    async def _commit_effects(self, node: str) -> None:
        effects = {name: part for name, part in self.parts.pending.items() if part is not None and is_effect(name)}
        for name in effects:
            del self.parts.pending[name]
        try:
            await self.slot.commit(keep=True, parts=effects, changes=Changes(self.slot.stored_data, {}, (), {}, {}))
        except Exception as error:
            self.broken = self._explained(node, error)
            if self.broken is error:
                raise
            raise self.broken from error
        self._clock_at, self._clock_base = monotonic(), self.slot.now

    def _is_cancelled(self) -> bool:
        """Return whether mail has cancelled the run while its nodes run."""
        return self.mailbox.cancel is not None and self.mailbox.on_cancel is not None

    def _watch(self) -> Mapping[str, float] | Keep:
        """Return the timer by which workers find a run whose runner has died, if it must be written again."""
        now = monotonic()
        if now + self._watch_for / 2 < self._watched_until and not self.mailbox.is_due:
            return KEEP
        self._watched_until, self.mailbox.is_due = now + self._watch_for, False
        return self.watch_timer()

    def watch_timer(self) -> Mapping[str, float]:
        """Return the timer by which workers find the run if its runner dies."""
        return {"watch": self.now() + self._watch_for}

    async def _look_for_fields(self) -> None:
        """Read merged fields. If the storage is unavailable, the next commit that succeeds looks again."""
        try:
            await self._read_fields()
        except StepwellError as error:
            logger.warning("the fields of run %s could not be read (%s); retrying", quoted(self.flow_id), error)

    async def _read_fields(self) -> bool:
        """Give the shared state the fields that others have merged; return whether the record still exists."""
        self.mailbox.unmerged = False
        self.slot.data = dict(self.shared)
        try:
            merged = await self.slot.merge_others()
        except BaseException:
            self.mailbox.unmerged = True
            raise
        self.shared.update(merged or {})
        return merged is not None

    async def save_whole(self, node: str) -> None:
        """Save, and complete the save even if the caller is cancelled.

        A branch or item that fails cancels the others, and the run then stores the error. It must know by then
        whether their saves were written.
        """
        saving = asyncio.ensure_future(self.save(node, between_nodes=False))
        try:
            await asyncio.shield(saving)
        except asyncio.CancelledError:
            while not saving.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait((saving,))
            if not saving.cancelled():
                saving.exception()
            raise

    async def park(self) -> Parked | None:
        """Commit that the run waits or is paused, release it, and return the exception to raise.

        Return ``None`` if mail has answered a wait or cancelled the run: it is not released, and must go on or end.
        """
        node = next(iter(unanswered(self.open)), self.positions[""])
        while not self.deliver() or self.mailbox.pausing:
            if self.mailbox.cancel is not None:
                return None
            waits = unanswered(self.open)
            asking = any(wait["id"] or is_child_wait(wait) for wait in waits.values())
            self.status = "parked" if asking else "sleeping"
            times = [wait["until"] for wait in waits.values() if wait["until"] is not None]
            times += [until for _, until in self.rechecks.values()]
            timers: Mapping[str, float] = {"continue": min(times)} if times else {}
            timers = {**timers, **timeout_timer(self.submitted)}
            if self.mailbox.pausing:
                self.status, timers = "paused", {}
                self.mailbox.drop_pauses()
            self._fill(idle=True)
            try:
                # Mail that is written after this commit has a deadline, so that a worker finds it.
                # A run that was retried, and waits again, is in a queue.
                queue = KEEP if self.slot.queue is None else None
                await self._commit(node, keep=False, timers=timers, only_version=self.mailbox.version, queue=queue)
            except VersionChanged:
                await self.mailbox.read()
            else:
                return RunPaused(self.flow_id, self.positions[""]) if self.mailbox.pausing else self.parked()
        if self.mailbox.cancel is None:
            self.status = "running"
            await self.save(node)
            # The values of parts that were written here are not kept.
            await self.parts.load()
        return None

    async def hand_over(self) -> RunPaused:
        """Commit the position, and release the run for the next worker; return the exception that says so."""
        self.status = "running"
        self._fill()
        queue = KEEP if self.slot.queue is None else None
        await self._commit(self.positions[""], keep=False, timers={"watch": self.now()}, queue=queue)
        return RunPaused(self.flow_id, self.positions[""])

    def parked(self) -> Parked:
        """Return the exception that names the first wait of the run."""
        waits = unanswered(self.open)
        if not waits:
            path, (_, until) = next(iter(self.rechecks.items()))
            return Parked("", self.flow_id, path, None, until)
        path = next((path for path, wait in waits.items() if wait["id"]), None) or next(iter(waits))
        wait = waits[path]
        return Parked(wait["id"], self.flow_id, path, wait["question"], wait["until"], for_children=is_child_wait(wait))

    def deliver(self) -> bool:
        """Give answers, signals and ends of children in the mail to the waits; return whether a wait got one.

        An answer whose wait has been answered before, or has timed out before it was sent, is dropped. A signal is kept
        until a wait takes it.
        """
        delivered = False
        for name in self.mailbox.of_kind("answer"):
            message = self.mailbox.use(name)
            path = next((path for path, known in questions(self.open).items() if known == message["wait"]), None)
            until = None if path is None else self.open[path]["until"]
            if path is not None and (until is None or message.get("at", until) < until):
                self.set_answer(path, message["value"], message.get("by"))
                delivered = True
        for path, wait in unanswered(self.open).items():
            signal = self.mailbox.signal_for(wait)
            if signal is not None:
                message = self.mailbox.use(signal)
                self.set_answer(path, message["value"], reply=message.get("reply"))
                delivered = True
        for name in self.mailbox.of_kind("child"):
            child = self.mailbox.use(name)["child"]
            if self.rechecks:
                # An item of a batch may wait for it.
                self.rechecks = {path: [since, 0.0] for path, (since, _) in self.rechecks.items()}
                delivered = True
            for path, wait in unanswered(self.open).items():
                if waits_for(wait, child):
                    # The node reads the record of the child.
                    self.open[path] = {**wait, "answer": None}
                    delivered = True
        return delivered

    def reply(self, path: str, value: Any = None, *, overwrite: bool = True) -> None:
        """Store the reply to the update that has answered a wait, if one has, with the commit of its node."""
        wait = self.open.get(path)
        if not isinstance(wait, dict) or "reply" not in wait:
            return
        known = self.parts.loaded.get("", {})
        if overwrite or f"{REPLY}{wait['reply']}" not in known:
            self.parts.put("", "reply", wait["reply"], value)
            replies = sorted(name for name in self.parts.loaded[""] if name.startswith(REPLY))
            self.parts.forget(replies[:-REPLIES])

    def set_answer(self, path: str, value: Any, by: str | None = None, *, reply: str | None = None) -> None:
        """Store the answer to a wait with the next commit.

        ``by``: who has answered. ``reply``: the id of the update that it is.
        """
        self.overdue.discard(path)
        wait = {**self.open[path], "answer": value}
        wait.pop("reply", None)
        if reply is not None:
            wait["reply"] = reply
        if by is not None:
            wait["by"] = by
        wait["id"] = wait.pop("again", wait["id"])
        self.open[path] = wait

    async def restore_shared(self) -> None:
        """Give the shared state the values that the current node began with."""
        if self.entered is None:
            await self.slot.rollback()
        began_with = self.slot.data if self.entered is None else self.entered
        # Callers of run() have this dict.
        self.shared.clear()
        self.shared.update(began_with)

    def left(self) -> float | None:
        """Return the seconds until the timeout of the run; ``None`` if it has none."""
        return self.submitted["timeout"][1] - self.now() if "timeout" in self.submitted else None

    def time_out(self) -> None:
        """Cancel the run, because its timeout has passed."""
        self.mailbox.end(f"its timeout of {self.submitted['timeout'][0]:g} s has passed")

    def recheck(self, path: str) -> None:
        """Run the items of a batch that wait again later, after a pause that grows with the time they have waited."""
        now = self.now()
        since = self.rechecks[path][0] if path in self.rechecks else now
        first, longest = RECHECKS
        self.rechecks[path] = [since, now + min(max(first, (now - since) / 2), longest)]

    def recover(self) -> None:
        """Begin to count deaths anew, because a node has completed or parks."""
        self.recoveries = 0
        deaths.end_suspect(self)

    async def note_failure(self, error: Exception) -> None:
        """Note the error that fails the run, and write what its nodes have streamed."""
        self.errors.put_last(error)
        if self._stream is not None:
            # An error here would hide the error of the run.
            with suppress(StepwellError):
                await self._stream.flush()

    async def fail(self, error: Exception) -> list[str]:
        """Commit that the run has failed, at its last position; return the waits that failed on their answer."""
        await self.note_failure(error)
        await self.slot.rollback()
        table = run_table(self.slot)
        table["status"] = "failed"
        table["errors"] = self.errors.newest_first()
        inside: dict[str, Any] = table.get("open", {})
        refused = [
            path for path in inside if path in self.errors.paths and has_answer(inside[path]) and inside[path]["id"]
        ]
        if refused:
            # The answer may be wrong, so the wait accepts another one, under a new id.
            table["open"] = inside | {path: asked_again(inside[path]) for path in refused}
        set_table(self.slot, table)
        # If the run is retried, the node calls effects again that have raised.
        await self.slot.commit(timers=end_timers(table, self.now()), dropped_parts=self.effects.names_of_raised())
        return refused

    async def stick(self, reason: str) -> None:
        """Commit that the run is stuck, at its last position. Workers leave it alone until ``flow.resume()``."""
        await self.slot.rollback()
        table = run_table(self.slot)
        table["before"] = table.get("before", table["status"])
        table["status"], table["stuck"] = "stuck", reason
        if self.errors.rows:
            table["errors"] = self.errors.newest_first()
        set_table(self.slot, table)
        await self.slot.commit(timers=end_timers(table, self.now()), queue=None)

    async def check(self, node: str) -> None:
        """Raise ``Unstorable`` if the shared state cannot be stored.

        A run that is not kept does not write its last state, but must fail in the same way as one that is kept.
        """
        self.slot.data = dict(self.shared)
        try:
            await self.slot.changes()
        except EncodeError as error:
            raise self._explained(node, error) from error

    async def finish(self) -> None:
        """Commit that the run has finished: remove it, or keep its final state."""
        node = self.history.trail[-1][0] if self.history.trail else ""
        if self.keep is False:
            self.slot.delete()
            self.parts.take_pending()
            # With the memo, a later resume() raises RunFinished.
            await self._commit(node, keep=False, timers=KEEP, memo={"finished": self.now()})
            return
        self.status = "finished"
        self.positions, self.open, self.undos = {"": ""}, {}, 0
        self.parts.drop("")
        expiry = None if self.keep is True else float(self.keep)
        only_version = self.mailbox.version
        while True:
            if self.mailbox.unmerged:
                # run() returns what is stored, so the state must have the fields that others have merged.
                only_version = await self._read_before_end()
            self.parts.drop_mail(self.mailbox.mail)
            self._fill()
            try:
                timers = end_timers(self.submitted, self.now())
                await self._commit(node, keep=False, timers=timers, expiry=expiry, only_version=only_version)
            except VersionChanged:
                self.mailbox.unmerged = True
            else:
                return

    async def _read_before_end(self) -> Version | None:
        """Read mail and merged fields, and return the version that has them; ``None`` if the record is not there."""
        try:
            await self.mailbox.read()
            # A task may read newer mail while the fields are read.
            version = self.mailbox.version
            return version if await self._read_fields() else None
        except StepwellError as error:
            # The last commit was not made.
            self.broken = error
            raise

    def stream(self) -> StreamWriter:
        """Return the writer of the values that nodes write."""
        if self._stream is None:
            storage = self.slot.storage
            assert storage.loop is not None
            self._stream = StreamWriter(storage, self.flow_id, self.mark, storage.loop)
        return self._stream

    async def _commit(
        self,
        node: str,
        *,
        keep: bool,
        timers: Mapping[str, float] | Keep,
        expiry: float | Keep | None = KEEP,
        memo: Any = KEEP,
        only_version: Version | None = None,
        queue: Keep | None = KEEP,
    ) -> None:
        if self._stream is not None:
            # A reader that sees the node as completed has all its values.
            await self._stream.flush()
        slot = self.slot
        changes: Changes | None = None
        pending: dict[str, Sealed | None] = {}
        try:
            if self.keeps_values and self.history.count and not slot.deleted:
                changes = await self._note_before()
            if self.parts.pending:
                pending = self.parts.take_pending()
            parts = {name: part for name, part in pending.items() if part is not None} if pending else None
            dropped = [name for name, part in pending.items() if part is None] if pending else ()
            await slot.commit(
                keep=keep,
                timers=timers,
                expiry=expiry,
                queue=queue,
                memo=memo,
                parts=parts,
                dropped_parts=dropped,
                # A run that parks again where it was has only another deadline.
                force=only_version is not None,
                only_version=only_version,
                changes=changes,
            )
        except VersionChanged:
            self.parts.give_back(pending)
            raise
        except Exception as error:
            self.broken = self._explained(node, error)
            if self.broken is error:
                raise
            raise self.broken from error
        if self.unsure_undos:
            self.unsure_undos = {name: part for name, part in self.unsure_undos.items() if name not in pending}
        self._clock_at, self._clock_base = monotonic(), slot.now

    def _explained(self, node: str, error: Exception) -> Exception:
        if isinstance(error, EncodeError):
            return Unstorable(node, error.path, error.type_name, error.why)
        if isinstance(error, LeaseLost | RecordReplaced):
            self.explain_loss(error, f"while node {quoted(node)} ran here" if node else "at its start")
        else:
            error.add_note(f"{f'after node {quoted(node)}' if node else 'at the start'} of run {quoted(self.flow_id)}")
        return error

    def explain_loss(self, error: LeaseLost | RecordReplaced, when: str) -> None:
        """Give a conflict of the record the message for a run; the original one is about conversations."""
        error.args = (
            f"the lease of run {quoted(self.flow_id)} ended before its commit, so nothing was written; a worker or "
            f"flow.resume({quoted(self.flow_id)}) continues it, unless another runner has it already. Keep blocking "
            "calls out of the event loop, so that the lease can be renewed"
            if isinstance(error, LeaseLost)
            else f"run {quoted(self.flow_id)} was removed or replaced (cleanup, update_state), so nothing was "
            "written and this runner stops; change fields of a run with merge_state()",
        )
        error.add_note(f"run {quoted(self.flow_id)} was lost {when}; flow.status() shows its state")

    def now(self) -> float:
        """Return the time of the storage: that of its last answer, plus the time since."""
        if self.slot.storage.clock is not None:
            return self.slot.storage.clock()
        return self._clock_base + (monotonic() - self._clock_at)

    def note_result(self, path: str, visit: int, result: Any) -> None:
        """Store with the next commit what a node has to undo; raise ``Unstorable`` if that is impossible."""
        # No two have one number, because they are undone from the last to the first.
        name = f"{UNDO}{self.undos:09d}"
        part = self.parts.seal(path, name, [path, visit, result], lambda at: f"the result of exec{at[3:]}")
        self.parts.put("", "undo", f"{self.undos:09d}", part)
        self.unsure_undos[name] = part
        self.undos += 1

    def note_idle(self, table: Mapping[str, Any]) -> None:
        """Note for how long a run has been queued or paused, or has slept between the attempts of a batch."""
        kind = {"queued": "queued", "paused": "paused"}.get(table["status"], "slept" if "rechecks" in table else "")
        if kind and "idle" in table:
            self._idle[kind] = max(self.slot.now - table["idle"], 0.0)

    def note_completed(
        self, path: str, *, started: float, attempts: int, visit: int, action: object, error: Sequence[str] | None
    ) -> None:
        """Add a node that has completed, or whose error was caught; ``started`` is on the monotonic clock."""
        ended = monotonic()
        row = [path, round(1000 * (started - self.began)), round(1000 * (ended - started)), attempts]
        more = self._waits_of(path, ended - started) if self.open or self._idle else None
        if error is not None:
            more = {**(more or {}), "error": list(error)}
        filled = self.history.add(row, visit, action, more)
        if filled is not None:
            self.parts.put("", "history", f"{filled:09d}", self.history.take_part())
            self.parts.drop_old("", f"{HISTORY}{filled - PARTS:09d}")
        if self.keeps_values:
            number = self.history.count
            for prefix in (VALUES, BEFORE):
                self.parts.drop_old("", f"{prefix}{number - WITH_VALUES:09d}")
            if self.last_values is not None:
                seen = values.to_json([shown(value) for value in self.last_values]).decode()
                self.parts.put("", "values", f"{number:09d}", seen)
                self.last_values = None

    async def _note_before(self) -> Changes:
        """Keep the fields that the next commit changes, as they were; return its changes."""
        slot = self.slot
        changes = await slot.changes()
        names = {*changes.set, *changes.unset}
        if names:
            seal, texts = slot.storage.seal(slot.address), slot.texts
            old = {name: texts[name] for name in names if name in texts}
            rows: list[list[Any]] | None = None
            if sum(map(len, old.values())) <= LONGEST_BEFORE:
                rows = [[key, value] for key, value in seal.data(old).items()]
                rows += [[key] for key in changes.data if (name := seal.name(key)) in names and name not in texts]
            self.parts.put("", "before", f"{self.history.count:09d}", rows)
        return changes

    def _waits_of(self, path: str, duration: float) -> dict[str, Any] | None:
        """Return what a history has of the waits before and inside a node."""
        more: dict[str, Any] = {kind: round(1000 * seconds) for kind, seconds in self._idle.items()}
        self._idle = {}
        inside = self.open.get(path)
        if isinstance(inside, dict) and "since" in inside:
            waited = inside.get("waited", 0.0) + self.now() - duration - inside["since"]
            sleeps = not inside["id"] and not is_child_wait(inside)
            more["slept" if sleeps else "waited"] = round(1000 * max(waited, 0.0))
            if "by" in inside:
                more["by"] = inside["by"]
        return more or None
