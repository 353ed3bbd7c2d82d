"""The journal of one durable run: where it stands, and how that gets into its record, one commit a node.

The record's flow is the flow's name, its state the path of the node to run next, its data the shared state. What
else must be known to go on is in a small table beside them (:meth:`Journal._fill`), written with every commit;
what is large (items, results, the fields of branches) is in parts, each written once and dropped with its node.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

from stepwell.codec.large import in_thread, is_large
from stepwell.errors import (
    CorruptRecord,
    EncodeError,
    FlowChanged,
    LeaseLost,
    Parked,
    RecordReplaced,
    RunReplaced,
    Unstorable,
)
from stepwell.nodes.engine.ids import WaitId
from stepwell.nodes.engine.on_error import message_of
from stepwell.nodes.engine.run_format import GRAPH, Retention, VisitCounts, problem_of_part, table_of, unpack
from stepwell.nodes.engine.shape import difference, digest, shape_of
from stepwell.nodes.engine.threads import settled
from stepwell.record import KEEP, Keep, Place
from stepwell.slot import Sealed, Slot

if TYPE_CHECKING:
    from stepwell.nodes.engine.plan import Program, Stage

__all__ = ["Journal", "is_inside"]

#: How many of the nodes before this one, and of the errors, are remembered.
TRAIL, ERRORS = 20, 5
#: Workers check a running run that has not committed for so many seconds; renewed at half of it.
WATCH = 12.0


class Journal:
    """The progress of one run, in memory and in its record.

    Branches change it without awaiting, from one consistent point to the next; :meth:`save` then writes the changes
    of all branches.
    """

    def __init__(self, slot: Slot, program: Program, flow: str, flow_id: str, shared: dict[Any, Any]) -> None:
        self.slot = slot
        self.program = program
        self.flow = flow
        self.flow_id = flow_id
        #: The shared state.
        self.shared = shared
        self.status = "running"
        self.keep: Retention = False
        self.started_at = 0.0
        #: Tells this run from others of the same id, in the ids of its waits.
        self.mark = ""
        assert program.root.graph is not None
        assert program.root.graph.start is not None
        #: The path of the next node of each branch. The main branch is "".
        self.positions: dict[str, str] = {"": program.root.graph.start.path}
        #: What is under way inside a node, by its path; also the last action of flows and branches that have ended.
        self.open: dict[str, Any] = {}
        #: How often each stage was visited, by its index; counts a node when it has completed.
        self.visits = VisitCounts(len(program.stages))
        self.trail: deque[str] = deque(maxlen=TRAIL)
        self.errors: deque[list[Any]] = deque(maxlen=ERRORS)
        #: The parts that are there, by the path of the node that they belong to.
        self.parts: dict[str, dict[str, Any]] = {}
        #: The waits whose time is over.
        self.overdue: set[str] = set()
        self._blamed: list[BaseException] = []
        #: The nodes that have failed here, by path.
        self._failed: set[str] = set()
        self._pending: dict[str, Sealed | None] = {}
        self._saving = False
        self._waiters: list[asyncio.Future[None]] = []
        self._changes = self._saved = 0
        #: What a commit has failed with.
        self.broken: Exception | None = None
        self._clock_at, self._clock_base = monotonic(), slot.now
        self._watched_until = 0.0
        self._shape = program.shape = program.shape or shape_of(program)
        self._digest = program.digest = program.digest or digest(self._shape)

    # The record

    async def begin(self, params: Mapping[str, Any], keep: Retention) -> None:
        """Write the start row."""
        self.keep, self.started_at = keep, self.now()
        if self.program.want_storage is not None:
            # It may wait.
            self.mark = self.slot.storage.ids()[-8:]
        self.put("", "graph", "", self._shape)
        if params:
            self.put("", "params", "", dict(params))
        memo = KEEP if self.slot.memo is None else None
        await self.save("", memo=memo)

    async def load(self) -> dict[str, Any]:
        """Load the position of the run from its record, and return its params."""
        try:
            return await self._load()
        except RunReplaced:
            raise
        except CorruptRecord as error:
            await self.slot.quarantine(error)
            raise

    async def _load(self) -> dict[str, Any]:
        slot = self.slot
        table = table_of(slot.place, slot.address)
        assert table is not None
        if slot.flow != self.flow:
            raise FlowChanged(self.flow_id, [f"it is a run of flow {slot.flow!r}, not of {self.flow!r}"])
        try:
            parts = await slot.parts()
        except (LeaseLost, RecordReplaced) as lost:
            self._note_loss(lost, "before it went on here")
            raise
        if GRAPH not in parts:
            raise RunReplaced(slot.address.text, self.flow_id)
        for name, value in parts.items():
            problem = problem_of_part(name, value)
            if problem is not None:
                raise self._corrupt(f"the part {name!r}", problem)
        if digest(parts[GRAPH]) != table["graph"]:
            raise self._corrupt("its graph", "differs from its digest")
        if table["graph"] != self._digest:
            raise FlowChanged(self.flow_id, difference(parts[GRAPH], self._shape))
        self.status, self.keep, self.started_at = table["status"], table.get("keep", False), table["started"]
        self.mark = table.get("run", "")
        self.positions = {"": slot.state or "", **table.get("lines", {})}
        self.open = dict(table.get("open", {}))
        self.errors.extend(reversed(table.get("errors", ())))
        self.trail.extend(slot.place.history)
        # The same nodes may have been declared in another order.
        indexes = {path: index for index, path in enumerate(self._shape)}
        try:
            visits = unpack(table["visits"], len(indexes))
        except ValueError as error:
            raise self._corrupt("the position of its run", "has another form (visits)") from error
        for path, count in zip(parts[GRAPH], visits, strict=False):
            if count:
                self.visits[indexes[path]] = count
        for name, value in parts.items():
            self.parts.setdefault(_owner(name), {})[name] = value
        self._check_position()
        timed = {path: wait["until"] for path, wait in self.waits().items() if wait["until"] is not None}
        latest = slot.now
        if timed and self.status != "running" and slot.deadline is not None and slot.deadline <= slot.now:
            # The record's deadline is that of the earliest, as the storage's own clock has it.
            latest = max(latest, min(timed.values()))
        self.overdue = {path for path, until in timed.items() if until <= latest}
        params: dict[str, Any] = self.parts.get("", {}).get("params::", {})
        return params

    def _check_position(self) -> None:
        """Raise unless what is under way fits the graph and the parts that were loaded."""
        forms = {"wait": dict, "sleep": dict, "batch": list}
        if self.status in ("parked", "sleeping") and not any(isinstance(inside, dict) for inside in self.open.values()):
            raise self._corrupt("the position of its run", "has no wait")
        for path in self.positions.values():
            if not path or path not in self._shape:
                raise self._corrupt("the position of its run", f"is no node of its graph: {path!r}")
        known = [*self.positions.values(), *(f"{path}/" for path in self.open)]
        for path, visits in zip(self._shape, self.visits.copy(), strict=True):
            if path and not visits and any(each.startswith(f"{path}/") for each in known):
                raise self._corrupt("the position of its run", f"is inside the node {path!r}, which was not visited")
        for path, inside in self.open.items():
            kind = self._shape[path][0] if path in self._shape else ""
            form = forms.get(kind)
            if type(inside) is not form and (form is not None or type(inside) in (dict, list)):
                raise self._corrupt("the position of its run", f"does not fit the node {path!r}")
            if kind == "batch":
                items = sum(len(part) for part in self.parts_of(path, "items"))
                done = [row[0] for part in self.parts_of(path, "done") for row in part]
                if inside[1] != items or not all(0 <= index < items for index in done):
                    raise self._corrupt(f"the batch {path!r}", "does not have the items that it was begun with")

    def _corrupt(self, what: str, why: str) -> CorruptRecord:
        return CorruptRecord(self.slot.address.text, what, why)

    def _fill(self) -> None:
        """Put the position of the run into its slot: state, path, and a table of what else a resume needs."""
        slot = self.slot
        table: dict[str, Any] = {
            "status": self.status,
            "graph": self._digest,
            "visits": self.visits.text,
            "started": self.started_at,
        }
        if self.mark:
            table["run"] = self.mark
        if slot.base:
            # A record with another base may have been replaced from outside.
            table["base"] = slot.base
        if self.keep:
            table["keep"] = self.keep
        if self.open:
            table["open"] = dict(self.open)
        if len(self.positions) > 1:
            table["lines"] = {name: path for name, path in self.positions.items() if name}
        if self.errors:
            table["errors"] = list(reversed(self.errors))
        slot.data = dict(self.shared)
        slot.place = Place(self.flow, self.positions[""] or None, None, tuple(self.trail), (table,))

    async def save(self, node: str, *, memo: Any = KEEP) -> None:
        """Write what has changed since the last time; ``node`` is why, for errors: empty at the start."""
        self._changes += 1
        mine = self._changes
        while self._saving:
            await self._other_save()
            if self._saved >= mine:
                # The save of another branch has included this one.
                return
        if self.broken is not None:
            # What a failed commit should have written is missing: nothing may be built on it.
            raise self.broken
        self._saving, saving = True, self._changes
        try:
            deadline: float | Keep = KEEP
            now = monotonic()
            if now + WATCH / 2 >= self._watched_until:
                self._watched_until, deadline = now + WATCH, WATCH
            self._fill()
            await self._commit(node, keep=True, deadline=deadline, memo=memo)
            self._saved = saving
        finally:
            self._saving = False
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters.clear()

    async def _other_save(self) -> None:
        """Wait until the save under way has ended."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    async def save_whole(self, node: str) -> None:
        """Save, and complete the save even if the caller is cancelled.

        A sibling that fails cancels its branches and items while the run goes on to write down why: it must
        know then what was written before.
        """
        saving = asyncio.ensure_future(self.save(node))
        try:
            await asyncio.shield(saving)
        except asyncio.CancelledError:
            await settled(saving)
            if not saving.cancelled():
                saving.exception()
            raise

    async def park(self) -> Parked:
        """Write that the run waits, release it, and return what it waits for."""
        waits = self.waits()
        self.status = "parked" if any(wait["id"] for wait in waits.values()) else "sleeping"
        times = [wait["until"] for wait in waits.values() if wait["until"] is not None]
        deadline = max(0.0, min(times) - self.now()) if times else None
        self._fill()
        await self._commit(next(iter(waits)), keep=False, deadline=deadline)
        return self.parked()

    async def fail(self) -> list[str]:
        """Write that the run has failed, where its last commit left it; the waits that have failed on their answer."""
        await self.slot.rollback()
        table = dict(self.slot.place.stack[0])
        table["status"] = "failed"
        table["errors"] = list(reversed(self.errors))
        inside: dict[str, Any] = table.get("open", {})
        refused = [path for path in inside if path in self._failed and _has_answer(inside[path])]
        if refused:
            # The answer may be what is wrong: another one is taken, under an id of its own.
            table["open"] = inside | {path: _asked_again(inside[path]) for path in refused}
        self.slot.place = self.slot.place._replace(stack=(table,))
        await self.slot.commit(deadline=None)
        return refused

    async def check(self, node: str) -> None:
        """Raise ``Unstorable`` if the shared state cannot be kept as it is now.

        The state after the last node is not written if the run is not kept, and must be as storable as any other.
        """
        self.slot.data = dict(self.shared)
        try:
            await self.slot.changes()
        except EncodeError as error:
            raise self._explained(node, error) from error

    async def finish(self) -> None:
        """Write that the run has finished: remove it, or keep its final state."""
        node = self.trail[-1] if self.trail else ""
        if self.keep is False:
            self.slot.delete()
            self._pending = {}
            # The memo lets a later resume() raise RunFinished.
            await self._commit(node, keep=False, deadline=KEEP, memo={"finished": self.now()})
            return
        self.status = "finished"
        self.positions, self.open = {"": ""}, {}
        self.drop("")
        self._fill()
        expiry = None if self.keep is True else float(self.keep)
        await self._commit(node, keep=False, deadline=None, expiry=expiry)

    async def _commit(
        self,
        node: str,
        *,
        keep: bool,
        deadline: float | Keep | None,
        expiry: float | Keep | None = KEEP,
        memo: Any = KEEP,
    ) -> None:
        pending, self._pending = self._pending, {}
        slot = self.slot
        try:
            if pending:
                parts = {name: part for name, part in pending.items() if part is not None}
                dropped = [name for name, part in pending.items() if part is None]
                await slot.commit(
                    keep=keep, deadline=deadline, expiry=expiry, memo=memo, parts=parts, dropped_parts=dropped
                )
            else:
                await slot.commit(keep=keep, deadline=deadline, expiry=expiry, memo=memo)
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
            self._note_loss(error, f"while {node!r} ran here" if node else "at its start")
        else:
            error.add_note(f"{f'after node {node!r}' if node else 'at the start'} of run {self.flow_id!r}")
        return error

    def _note_loss(self, error: LeaseLost | RecordReplaced, when: str) -> None:
        # Their own messages are about conversations.
        error.args = (
            f"this runner's claim on run {self.flow_id!r} ran out before its commit, nothing was written; leave the "
            "run to whoever goes on with it, and keep blocking calls out of the event loop"
            if isinstance(error, LeaseLost)
            else f"run {self.flow_id!r} was removed or replaced from outside (cleanup, update_state), nothing was "
            "written; its runner stops here",
        )
        error.add_note(
            f"run {self.flow_id!r} was taken over by another runner, or removed, {when}; "
            "flow.status() tells how it goes on"
        )

    def now(self) -> float:
        """Return the storage's time, as of its last answer plus the time since."""
        if self.slot.storage.clock is not None:
            return self.slot.storage.clock()
        return self._clock_base + (monotonic() - self._clock_at)

    # Parts

    def put(self, path: str, kind: str, number: int | str, value: Any) -> None:
        """Let the next commit write a part that belongs to a node. What cannot be kept is refused now."""
        name = f"{kind}:{path}:{number}"
        part = value if isinstance(value, Sealed) else self.seal(path, name, value, f"{kind} {{}}".format)
        self._pending[name] = part
        self.parts.setdefault(path, {})[name] = None

    async def seal_soon(self, node: str, name: str, value: Any, where: Callable[[str], str]) -> Sealed:
        """Encode a part, in a thread if it is large."""
        if is_large(value):
            return await in_thread(self.seal, node, name, value, where, True)
        return self.seal(node, name, value, where)

    def seal(self, node: str, name: str, value: Any, where: Callable[[str], str], large: bool = False) -> Sealed:
        """Encode a part; an error says where in the user's own terms, made from where it is in the part."""
        try:
            return self.slot.seal_part(name, value, large)
        except EncodeError as error:
            inside = error.path.removeprefix(f"${name}")
            raise Unstorable(node, where(inside), error.type_name, error.why) from error

    def drop(self, path: str) -> None:
        """Let the next commit drop the parts of a node, and of what is inside it; "" is the whole run."""
        for owner in [owner for owner in self.parts if not path or is_inside(owner, path)]:
            self._pending.update(dict.fromkeys(self.parts.pop(owner)))

    def part(self, path: str, kind: str, number: int | str = 0) -> Any:
        """A part of a node as it was loaded, or ``None``."""
        return self.parts.get(path, {}).get(f"{kind}:{path}:{number}")

    def parts_of(self, path: str, kind: str) -> list[Any]:
        """All parts of one kind that a node had when the run was loaded, in their order."""
        found: list[Any] = []
        while (value := self.part(path, kind, len(found))) is not None:
            found.append(value)
        return found

    # Waits

    def waits(self) -> dict[str, dict[str, Any]]:
        """The waits that nobody has answered, by the path of their node."""
        waits = {path: wait for path, wait in self.open.items() if isinstance(wait, dict)}
        return {path: wait for path, wait in waits.items() if "answer" not in wait}

    def questions(self) -> dict[str, str]:
        """The ids that an answer may have now, by the path of their node; first those whose answer was no good."""
        again = {path: wait["again"] for path, wait in self.open.items() if _has_answer(wait) and "again" in wait}
        return again | {path: wait["id"] for path, wait in self.waits().items() if wait["id"]}

    def answered(self) -> bool:
        """Whether a wait has an answer that the run has not gone on with yet."""
        return any(_has_answer(wait) for wait in self.open.values())

    def parked(self) -> Parked:
        """What the run waits for: the first of its waits."""
        waits = self.waits()
        path = next((path for path, wait in waits.items() if wait["id"]), None) or next(iter(waits))
        wait = waits[path]
        return Parked(wait["id"], self.flow_id, path, wait["question"], wait["until"])

    def answer(self, path: str, value: Any) -> None:
        """Note the answer to a wait. What cannot be kept is refused now, and nothing is answered."""
        self.seal(path, "answer", value, "the answer{}".format)
        wait = {**self.open[path], "answer": value}
        wait["id"] = wait.pop("again", wait["id"])
        self.open[path] = wait

    # Errors

    def blame(self, stage: Stage, error: BaseException) -> None:
        """Note an error at the node where it happened first."""
        if not isinstance(error, Exception) or any(error is known for known in self._blamed):
            return
        if isinstance(error, ExceptionGroup) and not stage.leaf:
            # Its errors have been noted where they happened.
            return
        self._blamed.append(error)
        self._failed.add(stage.path)
        self.errors.append([self.now(), stage.path, type(error).__name__, message_of(error)])


def is_inside(path: str, around: str) -> bool:
    """Whether a path is that of a node, or of something inside it."""
    return path == around or path.startswith(f"{around}/")


def _has_answer(inside: Any) -> bool:
    return isinstance(inside, dict) and "answer" in inside


def _asked_again(wait: dict[str, Any]) -> dict[str, Any]:
    asked = WaitId.read(wait["id"])
    assert asked is not None
    return {**wait, "again": asked.again().text}


def _owner(name: str) -> str:
    return name.partition(":")[2].rpartition(":")[0]
