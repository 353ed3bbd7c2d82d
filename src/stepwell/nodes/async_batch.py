"""``run_async_batch``: a throw-away run in the background, whose state can be watched in a storage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from stepwell.errors import InvalidOption, UsageError, WorkCancelled
from stepwell.nodes.batch import BatchNode, checked_items
from stepwell.nodes.engine.execution import Execution
from stepwell.nodes.engine.ids import new_flow_id
from stepwell.nodes.engine.on_error import attach
from stepwell.nodes.engine.position import Cursor, enter, leave
from stepwell.nodes.engine.runner import copy_node, run_root
from stepwell.nodes.engine.threads import settled
from stepwell.nodes.events import Event
from stepwell.nodes.flow import NodeFlow
from stepwell.storage import StateStorage, Storage
from stepwell.storage.state_storage import default_state_storage

if TYPE_CHECKING:
    from stepwell.nodes.engine.plan import Program, Stage

__all__ = ["run_async_batch"]


def run_async_batch(
    flow: NodeFlow, initial_state: Mapping[str, Any], *, storage: Storage | StateStorage | str | None = None
) -> asyncio.Task[dict[str, Any]]:
    """Start a flow over the items of its first node, and return the task that gives the final state.

    If the first node is a :class:`BatchNode`, the flow runs once: its items, then its ``post`` and the nodes
    after it. If it is a plain node, its ``prep`` gives the items, and the whole flow runs once per item, in
    order, with the item in the state as ``current_batch_item``; the state goes on from item to item.

    While it runs, its state is in the storage under the run's flow id (``step().flow_id``, the task's
    name), with ``batch_progress`` as long as a batch is under way. When it has ended, in whatever way,
    the state is removed: what must survive a crash is no case for this function.
    """
    if not isinstance(flow, NodeFlow):
        raise InvalidOption(f"run_async_batch() runs a NodeFlow, not {type(flow).__name__}")
    if storage is None:
        states = default_state_storage()
    elif isinstance(storage, StateStorage):
        states = storage
    else:
        states = StateStorage(storage)
    program = flow._program(without_loop=False)
    flow_id = new_flow_id(flow.name or type(flow).__name__)
    work = _Throwaway(flow, program, flow_id, states, dict(initial_state), closes=isinstance(storage, str))
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            "run_async_batch() starts a task, so it needs a running event loop; call it in an async def"
        ) from None
    return loop.create_task(work.run(), name=flow_id)


class _Throwaway:
    """One such run."""

    def __init__(
        self,
        flow: NodeFlow,
        program: Program,
        flow_id: str,
        states: StateStorage,
        state: dict[str, Any],
        *,
        closes: bool,
    ) -> None:
        self._flow = flow
        self._program = program
        self._flow_id = flow_id
        self._states = states
        self._state = state
        #: The storage was made from a URL for this run.
        self._closes = closes

    async def run(self) -> dict[str, Any]:
        try:
            await self._states.update_state(self._flow_id, self._state)
            graph = self._program.root.graph
            assert graph is not None
            assert graph.start is not None
            if isinstance(graph.start.node, BatchNode):
                await self._run_batch()
            else:
                await self._run_per_item(graph.start)
        except BaseException as error:
            try:
                await self._clean_up()
            except Exception as failure:  # noqa: BLE001 - it must not hide why the run ended
                attach(error, [failure])
            raise
        await self._clean_up()
        return self._state

    async def _clean_up(self) -> None:
        removal = asyncio.ensure_future(self._states.cleanup(self._flow_id))
        await settled(removal)
        try:
            removal.result()
        finally:
            if self._closes:
                await self._states.storage.close()

    async def _run_per_item(self, first: Stage) -> None:
        root = self._program.root
        run = Execution(self._program, name=root.name, without_loop=False, flow_id=self._flow_id)
        async with aclosing(_each(await self._items(run, first))) as items:
            async for item in items:
                self._state["current_batch_item"] = item
                await self._states.update_state(self._flow_id, self._state)
                result = await run_root(root, run, self._state, {})
                if isinstance(result, tuple):
                    self._flow._take_updates(root, result, self._state)
        await self._states.update_state(self._flow_id, self._state)

    async def _items(self, run: Execution, first: Stage) -> Any:
        token = enter(Cursor(run, first.path))
        try:
            items = first.prep(copy_node(first, self._flow.params), self._state)
            if asyncio.iscoroutine(items):
                items = await items
        finally:
            leave(token)
        return checked_items(first, items)

    async def _run_batch(self) -> None:
        changed = asyncio.Event()
        progress: dict[str, Any] = {}

        def watch(event: Event) -> None:
            if event.kind == "node.progress":
                progress["batch_progress"] = {"done": event.done, "total": event.total}
            elif event.kind == "node.finished":
                progress.clear()
            else:
                return
            changed.set()

        async def keep() -> None:
            # As often as the storage keeps up, never once per item of a quick batch.
            while True:
                await changed.wait()
                changed.clear()
                await self._states.update_state(self._flow_id, {**self._state, **progress})

        runner = asyncio.ensure_future(self._flow._run_unkept(self._state, self._flow_id, on_event=watch))
        keeper = asyncio.ensure_future(keep())
        try:
            await asyncio.wait((runner, keeper), return_when=asyncio.FIRST_COMPLETED)
        except BaseException as error:
            attach(error, [*await _end(runner), *await _end(keeper)])
            raise
        if runner.done() and runner.cancelled():
            await _end(keeper)
            raise WorkCancelled(f"the flow of run {self._flow_id!r}")
        errors = [*await _end(runner), *await _end(keeper)]
        if errors:
            attach(errors[0], errors[1:])
            raise errors[0]


async def _end(task: asyncio.Future[Any]) -> list[BaseException]:
    """End a task, and give the error that it ended with, unless that is its cancellation."""
    task.cancel()
    await settled(task)
    error = None if task.cancelled() else task.exception()
    return [] if error is None else [error]


async def _each(items: Any) -> AsyncGenerator[Any, None]:
    try:
        if isinstance(items, Iterable):
            for item in items:
                yield item
        else:
            async for item in items:
                yield item
    finally:
        if isinstance(items, Generator):
            items.close()
        elif isinstance(items, AsyncGenerator):
            await items.aclose()
