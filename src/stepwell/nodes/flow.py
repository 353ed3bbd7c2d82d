"""A flow of nodes: how it is run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from stepwell._portal import sync
from stepwell.errors import InsideLoop, InvalidGraph, InvalidOption, UsageError
from stepwell.nodes.engine import monitor, runs
from stepwell.nodes.engine.base import BaseNode
from stepwell.nodes.engine.execution import Execution, check_concurrency
from stepwell.nodes.engine.ids import flow_of_wait
from stepwell.nodes.engine.plan import Program
from stepwell.nodes.engine.runner import drive, run_root
from stepwell.nodes.engine.runs import IfExists, NewExecution, checked_retention, checked_storage
from stepwell.nodes.events import Subscriber, add_subscriber, emitter
from stepwell.nodes.graph import UNNAMED, NodeGraph, OnUnknownAction

if TYPE_CHECKING:
    from stepwell.nodes.engine.run_format import Retention
    from stepwell.storage import Storage

__all__ = ["NodeFlow", "linear", "with_error_handling"]


class NodeFlow(NodeGraph):
    """A graph of nodes that work on one shared state, walked from its start until an action leads nowhere.

    Put together by the builder (``add_node``, ``connect``, ``start``), which takes nodes and node classes,
    or by ``start=`` and the nodes' own edges (``a >> b``). The flow's own edges win. A flow is a node: it
    may have ``prep`` and ``post`` of its own, and inside another flow its last action chooses the edge.

    :param on_unknown_action: what happens when a node that has edges returns a named action without one:
        ``"raise"``, ``"end"`` the flow with a warning, or take the ``"default"`` edge.
    :param concurrency: how many ``exec`` calls inside may run at once, over all its batches and branches.
    :param max_steps: how many nodes a run may visit, those of flows inside among them, against endless loops.
    :param storage: where its runs are kept, unless they are given one of their own: a Storage, or a URL, whose storage
        the first run opens and ``flow.storage.close()`` closes.
    :param keep: whether runs stay in the storage when they have finished: ``True``, or for so many seconds.
    """

    def __init__(
        self,
        start: BaseNode | type[BaseNode] | None = None,
        *,
        name: str = UNNAMED,
        storage: Storage | str | None = None,
        on_unknown_action: OnUnknownAction = "raise",
        concurrency: int | None = None,
        max_steps: int | None = None,
        keep: Retention = False,
    ) -> None:
        super().__init__(name, on_unknown_action)
        if concurrency is not None:
            check_concurrency(concurrency)
        if max_steps is not None and (not isinstance(max_steps, int) or max_steps < 1):
            raise InvalidOption(f"max_steps={max_steps!r}: give a whole number of at least 1, or None")
        self.concurrency = concurrency
        self.max_steps = max_steps
        self.storage = checked_storage(storage)
        self.keep = checked_retention(keep)
        self._subscribers: list[Subscriber] = []
        if start is not None:
            self.start(start)

    async def run(
        self,
        shared: dict[str, Any] | None = None,
        *,
        storage: Storage | str | None = None,
        flow_id: str | None = None,
        params: Mapping[str, Any] | None = None,
        if_exists: IfExists = "raise",
        keep: Retention | None = None,
        concurrency: int | None = None,
        on_event: Subscriber | None = None,
    ) -> dict[str, Any]:
        """Run the flow on a shared state, which is changed in place and returned.

        Cancelled, it cancels everything below it and waits until that has ended. With a storage the run is
        durable: each node is committed before the next one runs, and whatever ends the process,
        :meth:`resume` goes on after the last of them.

        :param storage: where the run is kept; without one, and without one of the flow's, it is not kept. One that is
            given as a URL is opened for this call and closed at its end.
        :param flow_id: the id of this run, for ``resume``, ``step()`` and events; without one it gets a new one.
        :param params: values for the nodes' ``params``; they win over those of flows and nodes.
        :param if_exists: what to do about a run of this id that exists: ``"raise"`` or ``"resume"`` it.
        :param keep: takes the place of the flow's own ``keep`` for this run.
        :param concurrency: takes the place of the flow's own bound for this run.
        :param on_event: is called with every :class:`Event` of this run.
        """
        shared = _checked_shared(shared)
        if storage is not None or self.storage is not None:
            async with runs.storage_for(self, storage) as found:
                return await runs.start(
                    self,
                    shared,
                    storage=found,
                    flow_id=flow_id,
                    params=params or {},
                    if_exists=if_exists,
                    keep=self.keep if keep is None else checked_retention(keep),
                    new_execution=self._execution_factory(concurrency, on_event),
                )
        runs.check_unkept(if_exists, keep)
        return await self._run_unkept(shared, flow_id, params, concurrency, on_event)

    async def _run_unkept(
        self,
        shared: dict[str, Any],
        flow_id: str | None = None,
        params: Mapping[str, Any] | None = None,
        concurrency: int | None = None,
        on_event: Subscriber | None = None,
    ) -> dict[str, Any]:
        program = self._program(without_loop=False)
        if program.want_storage is not None:
            raise UsageError(f"{program.want_storage}, so the run needs a storage: run(shared, storage=...)")
        run = self._new_execution(
            program, without_loop=False, flow_id=flow_id, concurrency=concurrency, on_event=on_event
        )
        result = await run_root(program.root, run, shared, params or {})
        if isinstance(result, tuple):
            self._take_updates(program.root, result, shared)
        return shared

    def run_sync(
        self,
        shared: dict[str, Any] | None = None,
        *,
        storage: Storage | str | None = None,
        flow_id: str | None = None,
        params: Mapping[str, Any] | None = None,
        if_exists: IfExists = "raise",
        keep: Retention | None = None,
        concurrency: int | None = None,
        on_event: Subscriber | None = None,
    ) -> dict[str, Any]:
        """Run the flow without an event loop, with the arguments of :meth:`run`.

        A flow of ``def`` hooks runs in the caller's thread. One that needs a loop (``async def``, items or
        branches at once, executors, timeouts, a storage) runs on the library's background loop; inside a
        running loop that is an error.
        """
        shared = _checked_shared(shared)
        program = self._program(without_loop=True)
        if program.want_loop is None and storage is None and self.storage is None:
            runs.check_unkept(if_exists, keep)
            run = self._new_execution(
                program, without_loop=True, flow_id=flow_id, concurrency=concurrency, on_event=on_event
            )
            result = drive(run_root(program.root, run, shared, params or {}))
            if isinstance(result, tuple):
                self._take_updates(program.root, result, shared)
            return shared
        if asyncio._get_running_loop() is not None:
            why = program.want_loop or "the run is kept in a storage"
            raise InsideLoop(f"{why}, so await {self._title()}.run(...)")
        return sync(
            self.run(
                shared,
                storage=storage,
                flow_id=flow_id,
                params=params,
                if_exists=if_exists,
                keep=keep,
                concurrency=concurrency,
                on_event=on_event,
            )
        )

    async def resume(
        self,
        flow_id: str,
        value: Any = ...,
        *,
        storage: Storage | str | None = None,
        concurrency: int | None = None,
        on_event: Subscriber | None = None,
    ) -> dict[str, Any]:
        """Go on with a run that was interrupted, has failed, or waits; the final state.

        ``flow_id`` is the run's id, or the id of one of its waits, which ``value`` then answers, once: if it was
        answered before, nothing is applied, and the run's present outcome is given. With the run's id,
        ``value`` answers the wait that the run is at, or takes the place of the answer that it failed on. A run
        whose runner has died is free when that one's claim has run out, which this waits for.
        """
        async with runs.storage_for(self, storage) as found:
            return await runs.resume(
                self, flow_id, value, storage=found, new_execution=self._execution_factory(concurrency, on_event)
            )

    def resume_sync(
        self,
        flow_id: str,
        value: Any = ...,
        *,
        storage: Storage | str | None = None,
        concurrency: int | None = None,
        on_event: Subscriber | None = None,
    ) -> dict[str, Any]:
        """:meth:`resume` without an event loop, on the library's background loop."""
        return sync(self.resume(flow_id, value, storage=storage, concurrency=concurrency, on_event=on_event))

    async def status(self, flow_id: str, *, storage: Storage | str | None = None) -> monitor.Run:
        """How a run goes: read from its storage, so it may run anywhere. ``UnknownRun`` if there is none."""
        async with runs.storage_for(self, storage) as found:
            return await monitor.status(found, flow_of_wait(flow_id) or flow_id)

    async def runs(
        self, status: monitor.Status | None = None, *, storage: Storage | str | None = None
    ) -> AsyncIterator[monitor.Run]:
        """The runs of this flow that have not finished, or those of one status; ``async for``."""
        async with runs.storage_for(self, storage) as found:
            async for run in monitor.runs(found, self._title(), status):
                yield run

    def subscribe(self, callback: Subscriber) -> Callable[[], None]:
        """Call ``callback(event)`` with every :class:`Event` of this flow's runs in this process.

        Return a function that ends the subscription. A run inside a node of another flow is among them, a run of this
        flow as a part of another flow is not. The rules of :func:`stepwell.nodes.subscribe` hold::

            end = flow.subscribe(lambda event: print(event.kind, event.node, event.duration))
        """
        return add_subscriber(self._subscribers, callback)

    def _kind(self) -> str:
        return UNNAMED if type(self) is NodeFlow else type(self).__name__

    def _execution_factory(self, concurrency: int | None, on_event: Subscriber | None) -> NewExecution:
        def new_execution(program: Program, flow_id: str) -> Execution:
            return self._new_execution(
                program, without_loop=False, flow_id=flow_id, concurrency=concurrency, on_event=on_event
            )

        return new_execution

    def _new_execution(
        self,
        program: Program,
        flow_id: str | None,
        concurrency: int | None,
        on_event: Subscriber | None,
        *,
        without_loop: bool = False,
    ) -> Execution:
        if concurrency is not None:
            check_concurrency(concurrency)
        if flow_id is not None and (not isinstance(flow_id, str) or not flow_id):
            raise InvalidOption(f"flow_id={flow_id!r}: give a non-empty string, or nothing for a new one")
        if flow_id is not None and flow_of_wait(flow_id) is not None:
            raise InvalidOption(f"flow_id={flow_id!r} is the id of a wait; give the run another one")
        title = self._title()
        emit = emitter(title, on_event, self._subscribers)
        return Execution(
            program, name=title, without_loop=without_loop, flow_id=flow_id, concurrency=concurrency, emit=emit
        )


def linear(*nodes: BaseNode | type[BaseNode], name: str = UNNAMED, **options: Any) -> NodeFlow:
    """A flow of nodes one after the other; a class stands for a new node each time.

    Options are those of :class:`NodeFlow`.
    """
    flow = NodeFlow(name=name, **options)
    made = [flow._made(node) if isinstance(node, type) else node for node in nodes]
    if len({id(node) for node in made}) < len(made):
        problem = (
            "linear() is given a node twice, which would lead back to it for ever; give its class, or another node"
        )
        raise InvalidGraph(flow._title(), [problem])
    if made:
        flow.start(made[0])
    for source, target in pairwise(made):
        flow.connect(source, target)
    return flow


def with_error_handling(
    nodes: Iterable[BaseNode | type[BaseNode]],
    handler: BaseNode | type[BaseNode],
    *,
    name: str = UNNAMED,
    **options: Any,
) -> NodeFlow:
    """A flow of nodes one after the other, in which the action ``"error"`` of each leads to ``handler``."""
    flow = linear(*nodes, name=name, **options)
    for node in flow._reachable():
        flow.connect(node, handler, action="error")
    return flow


def _checked_shared(shared: object) -> dict[str, Any]:
    if shared is None:
        return {}
    if not isinstance(shared, dict):
        raise UsageError(f"the shared state is a dict, not {type(shared).__name__}")
    return shared
