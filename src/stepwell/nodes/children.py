"""A node that runs a flow once for each item, as child runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from stepwell._secrets import quoted
from stepwell.errors import (
    KeptError,
    RunCancelled,
    RunFailed,
    RunStuck,
    TooLarge,
    UnknownRun,
    UsageError,
)
from stepwell.errors.wording import counted
from stepwell.nodes.batch.durable import UNSAVED, as_list, row_of, store_items
from stepwell.nodes.batch.node import checked_items
from stepwell.nodes.flow import NodeFlow
from stepwell.nodes.graph.base import BaseNode
from stepwell.nodes.graph.hooks import call_hook
from stepwell.nodes.handle import RunHandle
from stepwell.nodes.queue import children, submitting
from stepwell.nodes.queue.submission import Submission
from stepwell.nodes.run.branch import Park
from stepwell.nodes.walk.execution import check_concurrency
from stepwell.nodes.walk.on_error import Failed, OnError, add_note, check_on_error, conclude
from stepwell.options import check_instance

if TYPE_CHECKING:
    from stepwell.nodes.graph.plan import Build, Stage, Strategy
    from stepwell.nodes.walk.execution import Cursor

__all__ = ["ChildMap"]

#: How many failed children an error names.
NAMED = 5


class ChildMap(BaseNode):
    """A node that runs a flow once for each item of ``prep``, each as a child run with its own retries and waits.

    The run is parked while it waits for its children. ``post`` gets the items and the final states of the children,
    in the order of the items::

        class Quotes(ChildMap):
            def prep(self, shared):
                return [{"pages": pages} for pages in shared["orders"]]

            def post(self, shared, items, finals):
                shared["prices"] = [final["price"] for final in finals]

        orders = linear(Quotes(quotes, concurrency=5), storage=storage)

    :param flow: the flow of the children. A worker must have it.
    :param concurrency: how many children are started and have not ended at once, waiting ones included.
    :param on_error: what to do if a child fails, is stuck or is cancelled. ``"stop"``: start no more children, and
        raise its error; those that run go on. ``"collect"``: run all others, then raise an ``ExceptionGroup``.
        ``"skip"``: run all others, and put :class:`Failed` in the place of its final state.
    """

    _settings: ClassVar[tuple[str, ...]] = (*BaseNode._settings, "flow", "concurrency", "on_error")
    _shape: ClassVar[str] = "children"

    def __init__(
        self, flow: NodeFlow, *, name: str | None = None, concurrency: int = 10, on_error: OnError = "stop"
    ) -> None:
        super().__init__(name=name)
        check_instance(flow, NodeFlow, "ChildMap({}): give the flow of the children")
        check_concurrency(concurrency)
        check_on_error(on_error)
        self.flow: NodeFlow = flow
        self.concurrency: int = concurrency
        self.on_error: OnError = on_error

    def shared_for(self, item: Any) -> dict[str, Any]:
        """Return the shared state of the child for an item: a ``dict`` as it is, another item as ``{"item": item}``."""
        return dict(item) if isinstance(item, Mapping) else {"item": item}

    def _strategy(self, build: Build, stage: Stage) -> Strategy | None:
        stage.items = checked_items
        if build.durable:
            stage.durable = run_children
        return build.need_storage(stage, "starts child runs")


async def run_children(stage: Stage, cursor: Cursor, node: ChildMap, shared: Any, inside: bool) -> tuple[Any, Any]:
    """Run the children, or the rest of them; return the items, and the results in their order."""
    branch = cursor.branch
    assert branch is not None
    journal, path = branch.journal, stage.path
    if inside:
        items = [item for part in journal.parts.all_of(path, "items") for item in part]
    else:
        items = await as_list(stage.items(stage, await call_hook(stage.prep, node, shared)))
        place = children.place_of(branch, path, cursor.visit)
        begun: dict[str, Any] = {"id": "", "question": None, "until": None, "since": journal.now(), "step": place}
        begun |= {"running": [], "progress": [0, len(items)]}
        await store_items(branch, stage, cursor.visit, items, begun)
    return items, await _Children(stage, cursor, node, items).run_all()


class _Children:
    """The children of one visit of a node."""

    def __init__(self, stage: Stage, cursor: Cursor, node: ChildMap, items: list[Any]) -> None:
        assert cursor.branch is not None
        self._branch = cursor.branch
        self._journal = journal = cursor.branch.journal
        self._storage = journal.slot.storage
        self._path, self._cursor, self._node, self._items = stage.path, cursor, node, items
        self._wait: dict[str, Any] = journal.open[stage.path]
        #: The items whose children have not ended.
        self._running: list[int] = list(self._wait["running"])
        #: With ``"collect"``: the items whose children have failed.
        self._failed: list[int] = list(self._wait.get("failed", ()))
        self._errors: list[RunFailed | RunStuck | RunCancelled | UnknownRun] = []
        self._parts: list[list[Any]] = journal.parts.all_of(stage.path, "done")
        self._done: dict[int, Any] = {
            index: Failed(items[index], KeptError(*error)) if error else result
            for part in self._parts
            for index, result, *error in part
        }

    async def run_all(self) -> list[Any]:
        """Read the children that may have ended, start others, and park; return the results after the last one."""
        before = len(self._done)
        running, self._running = self._running, []
        await self._collect(running)
        while not self._errors and (started := await self._start()):
            # After a kill, children of an earlier attempt may have ended, and their mail has been dropped.
            await self._collect(started)
        if not self._running and self._failed:
            # A child that had failed may have been retried meanwhile.
            failed, self._failed = self._failed, []
            await self._collect(failed, last=True)
        self._record(list(self._done)[before:])
        if self._errors and (self._node.on_error == "stop" or not self._running):
            await self._branch.save(self._path)
            what = f"of {counted(len(self._items), 'child', 'children')} of {quoted(self._path)}"
            names = [repr(error.flow_id) for error in self._errors]
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            conclude(self._node.on_error, self._errors, what, names=", ".join(names[:NAMED]) + more)
        if self._running:
            self._journal.recover()
            raise Park
        return [self._done[index] for index in range(len(self._items))]

    async def _collect(self, indexes: list[int], *, last: bool = False) -> None:
        """Sort children by whether they run, have finished or have failed."""
        policy = self._node.on_error
        outcomes = await asyncio.gather(*map(self._outcome, indexes))
        for index, outcome in zip(indexes, outcomes, strict=True):
            if outcome is None:
                self._running.append(index)
            elif not isinstance(outcome, Exception):
                self._done[index] = outcome
            elif policy == "skip":
                self._done[index] = Failed(self._items[index], outcome)
            else:
                # A child that has failed is read again when the run is resumed.
                (self._running if policy == "stop" else self._failed).append(index)
                if policy == "stop" or last:
                    add_note(outcome, f"item {index} of {quoted(self._path)}")
                    self._errors.append(outcome)

    def _child(self, index: int) -> RunHandle:
        return RunHandle(children.id_of_child(self._wait["step"], index), self._node.flow, self._storage)

    async def _outcome(self, index: int) -> dict[str, Any] | RunFailed | RunStuck | RunCancelled | UnknownRun | None:
        """Return the final state of a child or the error in its place, or ``None`` if it has not ended."""
        try:
            return await self._child(index)._final(self._storage)
        except (RunFailed, RunStuck, RunCancelled, UnknownRun) as error:
            return error

    async def _start(self) -> list[int]:
        """Start as many children as ``concurrency`` allows, and return their items."""
        begun = len(self._done) + len(self._running) + len(self._failed)
        free = self._node.concurrency - len(self._running)
        following = list(range(begun, min(len(self._items), begun + max(free, 0))))
        await asyncio.gather(*map(self._submit, following))
        return following

    async def _submit(self, index: int) -> None:
        flow = self._node.flow
        shared = self._node.shared_for(self._items[index])
        if not isinstance(shared, dict):
            raise UsageError(f"shared_for() of {quoted(self._path)} returned a {type(shared).__name__}; return a dict")
        how = Submission(
            keep=submitting.kept_child(flow.keep), on_exists="return", parent=children.parent_of(self._journal)
        )
        await submitting.submit(flow, shared, how, storage=self._storage, flow_id=self._child(index).id)

    def _record(self, ended: Iterable[int]) -> None:
        """Add the results and the children that run to the next commit, which is usually that of the park."""
        rows = [row_of(index, self._done[index]) for index in ended]
        last = self._parts[-1] if self._parts else []
        if rows and last and len(last) + len(rows) <= UNSAVED and self._put(len(self._parts) - 1, [*last, *rows]):
            rows = []
        number = len(self._parts)
        if rows and not self._put(number, rows):
            for offset, row in enumerate(rows):
                self._journal.parts.put(self._path, "done", number + offset, [row])
        progress = [len(self._done) + len(self._failed), len(self._items)]
        self._wait = {**self._wait, "running": sorted(self._running), "progress": progress}
        self._wait.pop("answer", None)
        self._wait.pop("failed", None)
        if self._failed:
            self._wait["failed"] = sorted(self._failed)
        self._journal.open[self._path] = self._wait
        if self._cursor.run.emit is not None and progress[0]:
            self._cursor.run.emit("node.progress", self._cursor, done=progress[0], total=progress[1])

    def _put(self, number: int, rows: list[Any]) -> bool:
        """Write a part of results, and return whether it is small enough."""
        try:
            self._journal.parts.put(self._path, "done", number, rows)
        except TooLarge:
            return False
        return True
