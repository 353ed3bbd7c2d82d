"""A flow of nodes: running and submitting it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

from stepwell._portal import sync
from stepwell.errors import InsideLoop, Parked, UsageError
from stepwell.nodes.control import runs
from stepwell.nodes.control.options import (
    IfExists,
    OnCancel,
    OnPark,
    check_choices,
    check_unkept,
    checked_params,
    checked_retention,
    checked_shared,
    storage_for,
)
from stepwell.nodes.deploy.migration import Migrate, check_deploy_options
from stepwell.nodes.events import Subscriber
from stepwell.nodes.flow_runs import FlowRuns
from stepwell.nodes.graph.base import BaseNode
from stepwell.nodes.graph.base_flow import apply_updates
from stepwell.nodes.graph.building import UNNAMED, OnUnknownAction
from stepwell.nodes.graph.plan import program_of
from stepwell.nodes.handle import RunHandle
from stepwell.nodes.queue import submitting
from stepwell.nodes.walk.execution import check_concurrency
from stepwell.nodes.walk.runner import drive, run_root
from stepwell.options import check_whole
from stepwell.storage.urls import as_storage

if TYPE_CHECKING:
    from stepwell.nodes.run.table import Retention
    from stepwell.storage import Storage

__all__ = ["NodeFlow"]


class NodeFlow(FlowRuns):
    """A graph of nodes that work on one shared state. A run follows the edges until an action has none.

    Build it with ``add_node``, ``connect`` and ``start``, which take nodes and node classes, or with ``start=`` and
    the edges of the nodes (``a >> b``). The edges of the flow override those of the nodes. A flow is a node: it may
    have ``prep`` and ``post`` of its own, and inside another flow its last action chooses the edge.

    Example::

        flow = NodeFlow(name="words", storage="sqlite:///runs.db").start(Read).connect(Read, CountWords)
        final = await flow.run({"text": "one two"}, flow_id="words-42")
        assert final["words"] == 2

    :param on_unknown_action: what to do if a node with edges returns an action that has none: ``"raise"``,
        ``"end"`` the flow with a warning, or take the ``"default"`` edge.
    :param concurrency: how many ``exec`` calls inside may run at once, over all its batches and branches.
    :param max_steps: how many nodes a run may visit, including those of nested flows; a guard against endless loops.
    :param storage: the storage of its runs, unless ``run`` gets another one: a Storage, or a URL, whose storage the
        first run opens and ``flow.storage.close()`` closes.
    :param keep: whether finished runs stay in the storage: ``True``, or a number of seconds.
    :param max_recoveries: how often the runner of a run may die before the run completes another node. Then the run
        is ``stuck``, so that a node that kills its process cannot kill one worker after the other.
    :param renamed: the new path of each node that a deploy has renamed, for runs of the graph before it:
        ``{"old": "new", "inner/old": "inner/new"}``. The path of a flow or of a parallel node stands for all
        nodes inside it.
    :param revision: the revision of the flow. A process leaves runs of a later revision to newer processes.
    :param migrate: a function that gets each run of an earlier revision as a :class:`StoredRun` before it
        continues, and may move it to another node and change its shared state.
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
        max_recoveries: int = 5,
        renamed: Mapping[str, str] | None = None,
        revision: int = 1,
        migrate: Migrate | None = None,
    ) -> None:
        super().__init__(name, on_unknown_action)
        check_deploy_options(revision, migrate, renamed)
        if concurrency is not None:
            check_concurrency(concurrency)
        check_whole(max_steps, "max_steps={}: give a whole number of at least 1, or None", least=1, optional=True)
        check_whole(max_recoveries, "max_recoveries={}: give a whole number of at least 0", least=0)
        self.max_recoveries: int = max_recoveries
        self.concurrency: int | None = concurrency
        self.max_steps: int | None = max_steps
        self.storage: Storage | None = None if storage is None else as_storage(storage)
        self._storage_url = storage if isinstance(storage, str) else None
        self.keep: Retention = checked_retention(keep)
        self.renamed: Mapping[str, str] = dict(renamed or {})
        self.revision: int = revision
        if migrate is not None:
            # A subclass may have a method of this name.
            self.migrate: Migrate | None = migrate
        self._built_at = monotonic()
        self._subscribers = []
        if start is not None:
            self.start(start)

    @overload
    async def run(
        self,
        shared: dict[str, Any] | None = None,
        *,
        on_park: Literal["raise"] = "raise",
        **options: Unpack[RunOptions],
    ) -> dict[str, Any]: ...
    @overload
    async def run(
        self, shared: dict[str, Any] | None = None, *, on_park: Literal["return"], **options: Unpack[RunOptions]
    ) -> dict[str, Any] | RunHandle: ...
    async def run(
        self,
        shared: dict[str, Any] | None = None,
        *,
        storage: Storage | str | None = None,
        flow_id: str | None = None,
        params: Mapping[str, Any] | None = None,
        if_exists: IfExists = "raise",
        keep: Retention | None = None,
        on_cancel: OnCancel = "interrupt",
        on_park: OnPark = "raise",
        concurrency: int | None = None,
        on_event: Subscriber | None = None,
    ) -> dict[str, Any] | RunHandle:
        """Run the flow on a shared state, which is changed in place and returned.

        If the call is cancelled, it cancels its nodes, and waits until they have ended. With a storage the run is
        durable: each node is committed before the next one runs, and after a crash :meth:`resume` continues with
        the node after the last commit.

        Raises the error of a node that fails, ``RunExists`` if there is a run of this id, ``Parked`` if the run waits,
        and ``UsageError`` if a node needs a storage.

        :param storage: makes the run durable. A URL is opened for this call and closed at its end. The default is
            the storage of the flow; if it has none, the run is not stored.
        :param flow_id: the id of this run, for ``resume``, ``step()`` and events; by default a new one.
        :param params: values for the nodes' ``params``; they override those of flows and nodes.
        :param if_exists: what to do if a run of this id exists: ``"raise"``, or ``"resume"`` it.
        :param keep: overrides the flow's ``keep`` for this run.
        :param on_cancel: what becomes of a durable run if the call is cancelled: ``"interrupt"``, so that the next
            worker continues it, because a cancelled task is mostly a shutdown; or ``"cancel"``.
        :param on_park: whether to ``"raise"`` :class:`Parked` if the run waits or is paused, or to ``"return"`` a
            :class:`RunHandle`.
        :param concurrency: overrides the flow's ``concurrency`` for this run.
        :param on_event: a function that is called with every :class:`Event` of this run.
        """
        shared = checked_shared(shared)
        if storage is not None or self.storage is not None:
            async with storage_for(self, storage) as found:
                check_choices(if_exists, on_cancel, on_park)
                try:
                    return await runs.start(
                        self,
                        shared,
                        storage=found,
                        flow_id=flow_id,
                        params=checked_params(params),
                        if_exists=if_exists,
                        keep=self.keep if keep is None else checked_retention(keep),
                        new_execution=partial(
                            self._new_execution,
                            concurrency=concurrency,
                            on_event=on_event,
                            cancels=on_cancel == "cancel",
                        ),
                    )
                except Parked as parked:
                    if on_park == "raise":
                        raise
                    return RunHandle(parked.flow_id, self, storage)
        check_unkept(if_exists, keep, on_cancel, on_park)
        program = program_of(self, without_loop=False)
        if program.want_storage is not None:
            raise UsageError(f"{program.want_storage}, so the run needs a storage: run(shared, storage=...)")
        run = self._new_execution(program, flow_id, concurrency, on_event)
        result = await run_root(program.root, run, shared, checked_params(params, stored=False))
        if isinstance(result, tuple):
            apply_updates(program.root, result, shared)
        return shared

    @overload
    def run_sync(
        self,
        shared: dict[str, Any] | None = None,
        *,
        on_park: Literal["raise"] = "raise",
        **options: Unpack[RunOptions],
    ) -> dict[str, Any]: ...
    @overload
    def run_sync(
        self, shared: dict[str, Any] | None = None, *, on_park: Literal["return"], **options: Unpack[RunOptions]
    ) -> dict[str, Any] | RunHandle: ...
    def run_sync(
        self,
        shared: dict[str, Any] | None = None,
        *,
        storage: Storage | str | None = None,
        flow_id: str | None = None,
        params: Mapping[str, Any] | None = None,
        if_exists: IfExists = "raise",
        keep: Retention | None = None,
        on_cancel: OnCancel = "interrupt",
        on_park: OnPark = "raise",
        concurrency: int | None = None,
        on_event: Subscriber | None = None,
    ) -> dict[str, Any] | RunHandle:
        """Run the flow without an event loop, with the arguments of :meth:`run`.

        A flow of ``def`` hooks runs in the calling thread. A flow that needs a loop (``async def``, concurrent items
        or branches, executors, timeouts, a storage) runs on the library's background loop. It raises
        :class:`InsideLoop` if it needs a loop and the caller runs inside one.
        """
        shared = checked_shared(shared)
        program = program_of(self, without_loop=True)
        if program.want_loop is None and storage is None and self.storage is None:
            check_unkept(if_exists, keep, on_cancel, on_park)
            run = self._new_execution(program, flow_id, concurrency, on_event, without_loop=True)
            result = drive(run_root(program.root, run, shared, checked_params(params, stored=False)))
            if isinstance(result, tuple):
                apply_updates(program.root, result, shared)
            return shared
        if asyncio._get_running_loop() is not None:
            why = program.want_loop or "the run has a storage"
            raise InsideLoop(f"{why}, so await {self._title()}.run(...)")
        # One call for both overloads.
        run_either: Callable[..., Coroutine[Any, Any, dict[str, Any] | RunHandle]] = self.run
        return sync(
            run_either(
                shared,
                storage=storage,
                flow_id=flow_id,
                params=params,
                if_exists=if_exists,
                keep=keep,
                on_cancel=on_cancel,
                on_park=on_park,
                concurrency=concurrency,
                on_event=on_event,
            )
        )

    async def submit(
        self,
        shared: dict[str, Any] | None = None,
        *,
        flow_id: str | None = None,
        partition: str | int | None = None,
        after: float | None = None,
        priority: int = 0,
        params: Mapping[str, Any] | None = None,
        keep: Retention | None = None,
        storage: Storage | str | None = None,
    ) -> RunHandle:
        """Put a run into the queue of this flow with one write, and return its handle. A worker runs it::

            handle = await flow.submit({"order": 42}, flow_id="order-42", partition="customer-7")
            final = await handle.result(timeout=60)

        If a run of this id exists, nothing is written, and the handle is that of the existing run.

        :param partition: runs of one partition (a user, a tenant) run one after the other, across all workers, in
            the order of their submission. A run that waits or sleeps keeps its partition.
        :param after: the seconds before which no worker takes it.
        :param priority: runs of higher priority are taken first.
        :param params: values for the nodes' ``params``.
        :param keep: overrides the flow's ``keep``. If that is ``False``, the run is kept for a day after its end, so
            that :meth:`RunHandle.result` can read it.
        """
        async with storage_for(self, storage) as found:
            submitted = await submitting.submit(
                self,
                checked_shared(shared),
                storage=found,
                flow_id=flow_id,
                partition=partition,
                after=after,
                priority=priority,
                params=checked_params(params),
                keep=self.keep if keep is None else checked_retention(keep),
            )
        return RunHandle(submitted, self, storage)

    def submit_sync(
        self,
        shared: dict[str, Any] | None = None,
        *,
        flow_id: str | None = None,
        partition: str | int | None = None,
        after: float | None = None,
        priority: int = 0,
        params: Mapping[str, Any] | None = None,
        keep: Retention | None = None,
        storage: Storage | str | None = None,
    ) -> RunHandle:
        """:meth:`submit` without an event loop, on the library's background loop."""
        return sync(
            self.submit(
                shared,
                flow_id=flow_id,
                partition=partition,
                after=after,
                priority=priority,
                params=params,
                keep=keep,
                storage=storage,
            )
        )

    def _kind(self) -> str:
        return UNNAMED if type(self) is NodeFlow else type(self).__name__


class RunOptions(TypedDict, total=False):
    """The options of :meth:`NodeFlow.run` that do not change the type of its result."""

    storage: Storage | str | None
    flow_id: str | None
    params: Mapping[str, Any] | None
    if_exists: IfExists
    keep: Retention | None
    on_cancel: OnCancel
    concurrency: int | None
    on_event: Subscriber | None
