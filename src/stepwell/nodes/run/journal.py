"""The journal of one durable run: its position in memory, committed to its record after each node.

The flow of the record is the name of the flow, its state the path of the next node, its data the shared state. A small
table beside them (:meth:`Journal._fill`) has the rest of the position and is written with every commit. Large values
(items, results, the fields of branches) are parts. Each part is written once, and dropped when its node completes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from stepwell._secrets import quoted
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
from stepwell.nodes.graph.shape import Shape, check_renamed, digest, shape_of
from stepwell.nodes.run import suspects
from stepwell.nodes.run.error_text import message_of, traceback_of
from stepwell.nodes.run.loaded import loaded_at
from stepwell.nodes.run.mailbox import Mailbox
from stepwell.nodes.run.streams import StreamWriter
from stepwell.nodes.run.table import (
    PARAMS,
    Retention,
    Status,
    end_timers,
    packed,
    set_table,
    table_of,
)
from stepwell.nodes.run.waits import asked_again, deliver, has_answer, is_child_wait, parked, unanswered
from stepwell.nodes.walk.threads import settled
from stepwell.record import KEEP, Keep, Place, Version
from stepwell.slot import Slot

if TYPE_CHECKING:
    from stepwell.nodes.graph.base_flow import BaseFlow
    from stepwell.nodes.graph.plan import Program, Stage

__all__ = ["Journal"]

logger: logging.Logger = logging.getLogger(__name__)

#: How many of the last nodes (and waits that have timed out) and of the last errors are stored.
TRAIL, ERRORS = 20, 5
#: The deadline of a running run, in seconds; renewed at half of it. After it, workers check whether its runner died.
WATCH = 12.0


#: The shortest and the longest pause, in seconds, before the items of a batch that wait for other runs run again.
RECHECKS = 1.0, 60.0


class Journal(Mailbox):
    """The position of one run, in memory and in its record.

    Branches change it between two awaits, so it is consistent whenever :meth:`save` writes it for all of them.
    """

    def __init__(self, slot: Slot, program: Program, flow: str, flow_id: str, shared: dict[Any, Any]) -> None:
        super().__init__(slot, flow_id)
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
        self.trail: deque[str] = deque(maxlen=TRAIL)
        #: Start, duration and attempts of the nodes of the trail; see ``Branch.complete``.
        self.timings: deque[str] = deque(maxlen=TRAIL)
        self.errors: deque[list[Any]] = deque(maxlen=ERRORS)
        #: The shared state after ``prep`` of a flow that was entered since the last commit.
        self.entered: dict[Any, Any] | None = None
        #: The waits whose deadline has passed.
        self.overdue: set[str] = set()
        #: For each batch with items that wait for other runs: since when, and when to run these items again.
        self.rechecks: dict[str, Any] = {}
        #: How often the runner has died since the last node completed.
        self.recoveries: int = 0
        #: The ids of waits that have timed out, the last one last.
        self.late: list[str] = []
        #: The errors of this process, each with its row in ``errors``.
        self._noted: list[tuple[Exception, list[Any]]] = []
        #: The paths of the nodes that have failed here.
        self._failed: set[str] = set()
        self._saving = False
        self._waiters: list[asyncio.Future[None]] = []
        self._changes = self._saved = 0
        self._stream: StreamWriter | None = None
        #: The error of a failed commit.
        self.broken: Exception | None = None
        self._clock_at, self._clock_base = monotonic(), slot.now
        #: The start of the run on the monotonic clock of this process.
        self.began: float = 0.0
        program.shape = program.shape or shape_of(program)
        program.digest = program.digest or digest(program.shape)
        self.shape: Shape = program.shape
        self.digest: str = program.digest
        root = cast("BaseFlow", program.root.node)
        self.revision: int = root.revision
        self._revision = None if root.revision == 1 else root.revision
        #: When this process loaded the graph, on the storage's clock.
        self.since: float = round(slot.now - (monotonic() - loaded_at(root, self.digest)), 3)
        #: The visits of paths that the graph does not have any more, or has with another kind of node.
        self.former: dict[str, int] = {}

    async def begin(self, params: Mapping[str, Any], keep: Retention, *, queued: bool = False) -> None:
        """Write the start row; ``queued``: over that of a queued run, which leaves its queue and has its params."""
        self.keep, self.started_at, self.began = keep, self.now(), monotonic()
        self.mark = self.slot.storage.ids()[-8:]
        self.put("", "graph", "", self.shape)
        if renamed := cast("BaseFlow", self.program.root.node).renamed:
            check_renamed(self.flow, renamed, self.shape)
            # A new run has the new names.
            self.put("", "former", "", {"visits": {}, "renamed": sorted(renamed)})
        if params and queued:
            self.parts[""][PARAMS] = params
        elif params:
            self.put("", "params", "", dict(params))
        await self.save("", memo=KEEP if self.slot.memo is None else None, queue=None)

    def _fill(self) -> None:
        """Copy the position of the run to its slot: the next node, the last ones, and the table."""
        slot = self.slot
        table: dict[str, Any] = {
            "status": self.status,
            "graph": self.digest,
            "visits": packed(self.visits),
            "started": self.started_at,
            "since": self.since,
        }
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
        if self.open:
            table["open"] = dict(self.open)
        if self.late:
            table["late"] = self.late[-TRAIL:]
        if len(self.positions) > 1:
            table["lines"] = {name: path for name, path in self.positions.items() if name}
        if self.timings:
            table["times"] = " ".join(self.timings)
        if self.errors:
            table["errors"] = list(reversed(self.errors))
        slot.data = dict(self.shared)
        if self.trail:
            table["trail"] = list(self.trail)
        slot.place = Place(self.flow, self.positions[""] or None, self._revision)
        set_table(slot, table)

    async def save(self, node: str, *, memo: Any = KEEP, queue: Keep | None = KEEP, between_nodes: bool = True) -> None:
        """Commit the position; ``node`` is the node that has just completed, for errors, empty at the start.

        ``between_nodes``: no node or branch runs, so the shared state gets the fields that others have merged.
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
        if self.cancel is not None and self.on_cancel is not None:
            # The node has suppressed the cancellation, or does not await anything.
            raise asyncio.CancelledError
        if self.broken is not None:
            # The changes of a failed commit are missing, so no later commit may follow it.
            raise self.broken
        self._saving, saving = True, self._changes
        try:
            timers: Mapping[str, float] | Keep = KEEP
            now = monotonic()
            if now + WATCH / 2 >= self._watched_until:
                self._watched_until, timers = now + WATCH, {"watch": self.now() + WATCH}
            self._fill()
            await self._commit(node, keep=True, timers=timers, memo=memo, queue=queue)
            self._saved, self.entered = saving, None
            version, read = self.slot.version, self._read
            foreign = read is not None and (version is None or version.number != read.number + 1)
            if foreign:
                # Another writer has merged fields or sent mail.
                await self.look_for_mail()
            else:
                self._read = version
            if between_nodes and self._unmerged:
                await self._look_for_fields()
        finally:
            self._saving = False
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters.clear()
        if foreign and self.cancel is not None and self.on_cancel is not None:
            raise asyncio.CancelledError

    async def _look_for_fields(self) -> None:
        """Read merged fields. If the storage is unavailable, the next commit that succeeds looks again."""
        try:
            await self._read_fields()
        except StepwellError as error:
            logger.warning("the fields of run %s could not be read (%s); retrying", quoted(self.flow_id), error)

    async def _read_fields(self) -> bool:
        """Give the shared state the fields that others have merged; return whether the record still exists."""
        self._unmerged = False
        self.slot.data = dict(self.shared)
        try:
            merged = await self.slot.merge_others()
        except BaseException:
            self._unmerged = True
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
            await settled(saving)
            if not saving.cancelled():
                saving.exception()
            raise

    async def park(self) -> Parked | None:
        """Commit that the run waits or is paused, release it, and return the exception to raise.

        Return ``None`` if mail has answered a wait or cancelled the run: it is not released, and must go on or end.
        """
        node = next(iter(unanswered(self.open)), self.positions[""])
        while not deliver(self) or self.pausing:
            if self.cancel is not None:
                return None
            waits = unanswered(self.open)
            asking = any(wait["id"] or is_child_wait(wait) for wait in waits.values())
            self.status = "parked" if asking else "sleeping"
            times = [wait["until"] for wait in waits.values() if wait["until"] is not None]
            times += [until for _, until in self.rechecks.values()]
            timers: Mapping[str, float] = {"continue": min(times)} if times else {}
            if self.pausing:
                self.status, timers = "paused", {}
                self.drop_pauses()
            self._fill()
            try:
                # Mail that is written after this commit has a deadline, so that a worker finds it.
                # A run that was retried, and waits again, is in a queue.
                queue = KEEP if self.slot.queue is None else None
                await self._commit(node, keep=False, timers=timers, only_version=self._read, queue=queue)
            except VersionChanged:
                await self.read_mail()
            else:
                return RunPaused(self.flow_id, self.positions[""]) if self.pausing else parked(self)
        if self.cancel is None:
            self.status = "running"
            await self.save(node)
            await self.load_parts()
        return None

    async def restore_shared(self) -> None:
        """Give the shared state the values that the current node began with."""
        if self.entered is None:
            await self.slot.rollback()
        began_with = self.slot.data if self.entered is None else self.entered
        # Callers of run() have this dict.
        self.shared.clear()
        self.shared.update(began_with)

    def recheck(self, path: str) -> None:
        """Run the items of a batch that wait again later, after a pause that grows with the time they have waited."""
        now = self.now()
        since = self.rechecks[path][0] if path in self.rechecks else now
        first, longest = RECHECKS
        self.rechecks[path] = [since, now + min(max(first, (now - since) / 2), longest)]

    def recover(self) -> None:
        """Begin to count deaths anew, because a node has completed or parks."""
        self.recoveries = 0
        suspects.leave(self)

    async def fail(self, error: Exception) -> list[str]:
        """Commit that the run has failed, at its last position; return the waits that failed on their answer."""
        self._put_last(error)
        await self.slot.rollback()
        table = self._table()
        table["status"] = "failed"
        table["errors"] = list(reversed(self.errors))
        inside: dict[str, Any] = table.get("open", {})
        refused = [path for path in inside if path in self._failed and has_answer(inside[path]) and inside[path]["id"]]
        if refused:
            # The answer may be wrong, so the wait accepts another one, under a new id.
            table["open"] = inside | {path: asked_again(inside[path]) for path in refused}
        set_table(self.slot, table)
        if self._stream is not None:
            # An error here would hide the error of the run.
            with suppress(StepwellError):
                await self._stream.flush()
        await self.slot.commit(timers=end_timers(table, self.now()))
        return refused

    async def stick(self, reason: str) -> None:
        """Commit that the run is stuck, at its last position. Workers leave it alone until ``flow.resume()``."""
        await self.slot.rollback()
        table = self._table()
        table["before"] = table.get("before", table["status"])
        table["status"], table["stuck"] = "stuck", reason
        set_table(self.slot, table)
        await self.slot.commit(timers=end_timers(table, self.now()), queue=None)

    def _table(self) -> dict[str, Any]:
        table = table_of(self.slot.head, self.slot.address)
        assert table is not None
        return table

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
        node = self.trail[-1] if self.trail else ""
        if self.keep is False:
            self.slot.delete()
            self._pending = {}
            # With the memo, a later resume() raises RunFinished.
            await self._commit(node, keep=False, timers=KEEP, memo={"finished": self.now()})
            return
        self.status = "finished"
        self.positions, self.open = {"": ""}, {}
        self.drop("")
        expiry = None if self.keep is True else float(self.keep)
        only_version = self._read
        while True:
            if self._unmerged:
                # run() returns what is stored, so the state must have the fields that others have merged.
                only_version = await self._read_before_end()
            self._pending.update(dict.fromkeys(self.mail))
            self._fill()
            try:
                timers = end_timers(self.submitted, self.now())
                await self._commit(node, keep=False, timers=timers, expiry=expiry, only_version=only_version)
            except VersionChanged:
                self._unmerged = True
            else:
                return

    async def _read_before_end(self) -> Version | None:
        """Read mail and merged fields, and return the version that has them; ``None`` if the record is not there."""
        try:
            await self.read_mail()
            # A task may read newer mail while the fields are read.
            version = self._read
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
        pending, self._pending = self._pending, {}
        slot = self.slot
        parts = {name: part for name, part in pending.items() if part is not None} if pending else None
        dropped = [name for name, part in pending.items() if part is None] if pending else ()
        try:
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
            )
        except VersionChanged:
            self._pending = pending
            raise
        except Exception as error:
            self.broken = self._explained(node, error)
            if self.broken is error:
                raise
            raise self.broken from error
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
            f"flow.resume({quoted(self.flow_id)}) continues it, unless another runner has it already. Keep "
            "blocking calls "
            "out of the event loop, so that the lease can be renewed"
            if isinstance(error, LeaseLost)
            else f"run {quoted(self.flow_id)} was removed or replaced (cleanup, update_state), so nothing was "
            "written and "
            "this runner stops; change fields of a run with merge_state()",
        )
        error.add_note(f"run {quoted(self.flow_id)} was lost {when}; flow.status() shows its state")

    def now(self) -> float:
        """Return the time of the storage: that of its last answer, plus the time since."""
        if self.slot.storage.clock is not None:
            return self.slot.storage.clock()
        return self._clock_base + (monotonic() - self._clock_at)

    def note_error(self, stage: Stage, error: BaseException, attempt: int) -> None:
        """Add an error to the last errors, once, with the innermost node that raised it."""
        if not isinstance(error, Exception) or any(error is known for known, _ in self._noted):
            return
        if isinstance(error, ExceptionGroup) and not stage.leaf:
            # Each of its errors was added with its own node.
            return
        self._failed.add(stage.path)
        row = [self.now(), stage.path, type(error).__name__, message_of(error), traceback_of(error), attempt]
        self._noted.append((error, row))
        self.errors.append(row)

    def _put_last(self, error: Exception) -> None:
        """Put the error that fails the run behind the errors of branches that it has cancelled."""
        for part in error.exceptions if isinstance(error, ExceptionGroup) else ():
            self._put_last(part)
        for noted, row in self._noted:
            if noted is error:
                with suppress(ValueError):
                    self.errors.remove(row)
                self.errors.append(row)
