"""``run_async_batch``: a run in a background task, whose state is in a storage while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepwell._secrets import quoted
from stepwell.errors import UsageError, WorkCancelled
from stepwell.nodes.batch.in_loop import each_item
from stepwell.nodes.batch.node import BatchNode, checked_items
from stepwell.nodes.events import Event
from stepwell.nodes.flow import NodeFlow
from stepwell.nodes.graph.hooks import call_hook
from stepwell.nodes.graph.plan import program_of
from stepwell.nodes.run.ids import new_flow_id
from stepwell.nodes.walk.execution import Cursor, Execution, enter, leave
from stepwell.nodes.walk.on_error import attach
from stepwell.nodes.walk.runner import copy_node, run_root
from stepwell.nodes.walk.threads import settled
from stepwell.options import check_instance
from stepwell.storage import StateStorage, Storage
from stepwell.storage.state_storage import default_state_storage

if TYPE_CHECKING:
    from stepwell.nodes.graph.plan import Program, Stage

__all__ = ["run_async_batch"]


def run_async_batch(
    flow: NodeFlow, initial_state: Mapping[str, Any], *, storage: Storage | StateStorage | str | None = None
) -> asyncio.Task[dict[str, Any]]:
    """Start a flow over the items of its first node, and return the task that gives the final state.

    If the first node is a :class:`BatchNode`, the flow runs once: the items, then ``post`` and the nodes after it.
    If it is another node, its ``prep`` returns the items, and the whole flow runs once per item, in order, on one
    state, with the item as ``current_batch_item``.

    While it runs, its state is in the storage under the flow id of the run (``step().flow_id``, and the name of the
    task), with ``batch_progress`` while a batch runs. The state is removed when the run ends or fails. It does not
    survive a crash: for that, use ``flow.run(shared, storage=...)``.

    Raises ``UsageError`` without a running event loop, and if a node needs a durable run.

    Example::

        class Double(BatchNode):
            def prep(self, shared):
                return shared["numbers"]

            def exec(self, number):
                return 2 * number

            def post(self, shared, numbers, results):
                shared["doubled"] = results

        final = await run_async_batch(linear(Double), {"numbers": [1, 2]}, storage=storage)
        assert final["doubled"] == [2, 4]
    """
    check_instance(flow, NodeFlow, "run_async_batch() needs a NodeFlow, not {type}")
    if storage is None:
        states = default_state_storage()
    elif isinstance(storage, StateStorage):
        states = storage
    else:
        states = StateStorage(storage)
    flow_id = new_flow_id(flow.name or type(flow).__name__)
    program = program_of(flow, without_loop=False)
    if program.want_storage is not None:
        raise UsageError(f"{program.want_storage}, so it needs a durable run: await flow.run(shared, storage=...)")
    work = _BackgroundRun(flow, program, flow_id, dict(initial_state), states, closes=isinstance(storage, str))
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            "run_async_batch() starts a task, so it needs a running event loop; call it in an async def"
        ) from None
    return loop.create_task(work.run(), name=flow_id)


@dataclass(slots=True, eq=False)
class _BackgroundRun:
    """One run of :func:`run_async_batch`."""

    flow: NodeFlow
    program: Program
    flow_id: str
    state: dict[str, Any]
    states: StateStorage
    #: Whether the storage was made from a URL for this run.
    closes: bool

    async def run(self) -> dict[str, Any]:
        graph = self.program.root.graph
        assert graph is not None
        assert graph.start is not None
        try:
            await self._save()
            if isinstance(graph.start.node, BatchNode):
                await self._run_batch()
            else:
                await self._run_per_item(graph.start)
        except BaseException as error:
            try:
                await self._clean_up()
            except Exception as failure:  # noqa: BLE001 - it must not hide the error of the run
                attach(error, [failure])
            raise
        await self._clean_up()
        return self.state

    async def _save(self, **progress: Any) -> None:
        await self.states.update_state(self.flow_id, {**self.state, **progress})

    async def _clean_up(self) -> None:
        removal = asyncio.ensure_future(self.states.cleanup(self.flow_id))
        await settled(removal)
        try:
            removal.result()
        finally:
            if self.closes:
                await self.states.storage.close()

    async def _run_per_item(self, first: Stage) -> None:
        run = Execution(self.program, name=self.program.root.name, without_loop=False, flow_id=self.flow_id)
        async with aclosing(each_item(await self._items(run, first))) as items:
            async for item in items:
                self.state["current_batch_item"] = item
                await self._save()
                await self._run_flow(run)
        await self._save()

    async def _run_flow(self, run: Execution) -> None:
        await run_root(self.program.root, run, self.state, {})

    async def _items(self, run: Execution, first: Stage) -> Iterable[Any] | AsyncIterable[Any]:
        token = enter(Cursor(run, first.path))
        try:
            return checked_items(first, await call_hook(first.prep, copy_node(first, self.flow.params), self.state))
        finally:
            leave(token)

    async def _run_batch(self) -> None:
        changed = asyncio.Event()
        progress: dict[str, Any] = {}

        def on_event(event: Event) -> None:
            if event.kind == "node.progress":
                progress["batch_progress"] = {"done": event.done, "total": event.total}
            elif event.kind == "node.finished":
                progress.clear()
            else:
                return
            changed.set()

        async def save_changes() -> None:
            # One save at a time: a quick batch finishes many items between two of them.
            while True:
                await changed.wait()
                changed.clear()
                await self._save(**progress)

        run = self.flow._new_execution(self.program, self.flow_id, on_event=on_event)
        runner = asyncio.ensure_future(self._run_flow(run))
        saver = asyncio.ensure_future(save_changes())
        try:
            await asyncio.wait((runner, saver), return_when=asyncio.FIRST_COMPLETED)
        except BaseException as error:
            attach(error, [*await _cancel(runner), *await _cancel(saver)])
            raise
        if runner.done() and runner.cancelled():
            await _cancel(saver)
            raise WorkCancelled(f"the flow of run {quoted(self.flow_id)}")
        errors = [*await _cancel(runner), *await _cancel(saver)]
        if errors:
            attach(errors[0], errors[1:])
            raise errors[0]


async def _cancel(task: asyncio.Future[Any]) -> list[BaseException]:
    """Cancel a task, wait for its end, and return its error, unless it was cancelled."""
    task.cancel()
    await settled(task)
    error = None if task.cancelled() else task.exception()
    return [] if error is None else [error]
