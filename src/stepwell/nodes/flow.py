"""A flow of nodes: running and submitting it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, get_args, overload

from stepwell._portal import sync
from stepwell.errors import InsideLoop, Parked, RunBusy, UsageError
from stepwell.nodes.control import requests, runs
from stepwell.nodes.control.moving import At, fork
from stepwell.nodes.control.options import (
    IfExists,
    OnCancel,
    OnPark,
    check_choices,
    check_options,
    check_unkept,
    checked_params,
    checked_retention,
    checked_shared,
    checked_tags,
    storage_for,
)
from stepwell.nodes.deploy.migration import Migrate, check_deploy_options
from stepwell.nodes.events import Subscriber, add_subscriber, emitter
from stepwell.nodes.graph.base import BaseNode
from stepwell.nodes.graph.building import UNNAMED, NodeGraph, OnUnknownAction
from stepwell.nodes.graph.plan import Program, program_of
from stepwell.nodes.handle import RunHandle
from stepwell.nodes.history import Detail, RunHistory
from stepwell.nodes.queue import submitting
from stepwell.nodes.queue.submission import Merge, OnExists, Submission
from stepwell.nodes.run import monitor
from stepwell.nodes.run.ids import check_flow_id, flow_of_wait
from stepwell.nodes.run.table import tag_texts
from stepwell.nodes.run.waits import Answered
from stepwell.nodes.stream import StreamEntry, follow
from stepwell.nodes.walk.execution import Execution, check_concurrency
from stepwell.nodes.walk.runner import drive, run_root
from stepwell.options import check_choice, check_instance, check_whole
from stepwell.storage.urls import as_storage

if TYPE_CHECKING:
    from stepwell.nodes.run.table import Retention
    from stepwell.storage import Storage

__all__ = ["NodeFlow"]


class NodeFlow(NodeGraph):
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
    :param history: what is kept of each node that completes, for :meth:`history`: ``"nodes"``; ``"values"``
        for what ``prep`` and ``exec`` have returned and for forks at earlier nodes, too; or ``None`` for the last 20
        nodes without their actions and waits. It goes with the commit of the node.
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
        history: Detail | None = "nodes",
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
        check_choice(history, (*get_args(Detail), None), "history={}: choose 'nodes', 'values' or None")
        self._detail: Detail | None = history
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
        self._subscribers: list[Subscriber] = []
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
        await run_root(program.root, run, shared, checked_params(params, stored=False))
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
        self, shared: dict[str, Any] | None = None, *, on_park: OnPark = "raise", **options: Unpack[RunOptions]
    ) -> dict[str, Any] | RunHandle:
        """Run the flow without an event loop, with the arguments of :meth:`run`.

        A flow of ``def`` hooks runs in the calling thread. A flow that needs a loop (``async def``, concurrent items
        or branches, executors, timeouts, a storage) runs on the library's background loop. It raises
        :class:`InsideLoop` if it needs a loop and the caller runs inside one.
        """
        shared = checked_shared(shared)
        program = program_of(self, without_loop=True)
        if program.want_loop is None and options.get("storage") is None and self.storage is None:
            check_options("run_sync", options, RunOptions)
            given: Callable[..., Any] = options.get
            check_unkept(given("if_exists", "raise"), given("keep"), given("on_cancel", "interrupt"), on_park)
            limit, on_event = given("concurrency"), given("on_event")
            run = self._new_execution(program, given("flow_id"), limit, on_event, without_loop=True)
            drive(run_root(program.root, run, shared, checked_params(given("params"), stored=False)))
            return shared
        if asyncio._get_running_loop() is not None:
            why = program.want_loop or "the run has a storage"
            raise InsideLoop(f"{why}, so await {self._title()}.run(...)")
        # One call for both overloads.
        run_either: Callable[..., Coroutine[Any, Any, dict[str, Any] | RunHandle]] = self.run
        return sync(run_either(shared, on_park=on_park, **options))

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
        tags: Mapping[str, str | int] | None = None,
        timeout: float | None = None,
        on_exists: OnExists | None = None,
        debounce: float | None = None,
        at_most: float | None = None,
        merge: Merge | None = None,
        connection: Any = None,
        storage: Storage | str | None = None,
    ) -> RunHandle:
        """Put a run into the queue of this flow with one write, and return its handle. A worker runs it::

            handle = await flow.submit({"order": 42}, flow_id="order-42", partition="customer-7")
            final = await handle.result(timeout=60)

        If a run of this id exists that was submitted with the same data, nothing is written, and the handle is that of
        the existing run, with ``created`` false. Raises ``RunExists`` if it was submitted with other data.

        :param partition: runs of one partition (a user, a tenant) run one after the other, across all workers, in
            the order of their submission. A run that waits or sleeps keeps its partition.
        :param after: the seconds before which no worker takes it.
        :param priority: runs of higher priority are taken first.
        :param params: values for the nodes' ``params``.
        :param keep: overrides the flow's ``keep``. If that is ``False``, the run is kept for a day after its end, so
            that :meth:`RunHandle.result` can read it.
        :param tags: names and values by which :meth:`runs` and ``stepwell runs --tag`` find the run.
        :param timeout: the seconds after which the run is cancelled if it has not ended, from now on.
        :param on_exists: what to do if a run of this id exists: ``"return"`` it whatever its data is, ``"raise"``
            ``RunExists``, ``"replace"`` the data of a run that has not started, or ``"restart"`` one that has ended.
        :param debounce: start after so many seconds without another call for this ``flow_id``, which it needs. Each
            call before the start has the run work on its own data. A call after the start begins another run, whose id
            ends with ``~2``.
        :param at_most: with ``debounce``, the most seconds from the first call to the start.
        :param merge: with ``debounce``, a ``def`` that gets the data of the run and that of the call, and returns the
            data to run with.
        :param connection: an asyncpg connection of the same database, or an apsw connection to the same SQLite file,
            in whose open transaction the run is written: it exists if the transaction commits, together with your
            own rows.
        """
        async with storage_for(self, storage) as found:
            how = Submission(
                partition=partition,
                after=after,
                priority=priority,
                params=checked_params(params),
                keep=self.keep if keep is None else checked_retention(keep),
                tags=checked_tags(tags),
                timeout=timeout,
                on_exists=on_exists,
                debounce=debounce,
                at_most=at_most,
                merge=merge,
            )
            submitted = await submitting.submit(
                self, checked_shared(shared), how, storage=found, flow_id=flow_id, connection=connection
            )
        return RunHandle(submitted.flow_id, self, storage, created=submitted.created)

    def submit_sync(self, shared: dict[str, Any] | None = None, **options: Unpack[SubmitOptions]) -> RunHandle:
        """:meth:`submit` without an event loop, on the library's background loop."""
        return sync(self.submit(shared, **options))

    async def resume(
        self,
        flow_id: str,
        value: Any = ...,
        *,
        storage: Storage | str | None = None,
        concurrency: int | None = None,
        on_event: Subscriber | None = None,
    ) -> dict[str, Any]:
        """Resume a run that was interrupted or paused, has failed or waits, and return its final state.

        ``flow_id`` is the id of the run or of one of its waits. With the id of a wait, ``value`` answers that wait,
        once: a second answer is ignored, and the run continues or returns its state. With the id of the run,
        ``value`` answers its open wait, or replaces the answer that it failed on; with several open waits this raises
        ``UsageError``. If the runner of the run has died, this waits until its lease has ended.
        """
        async with storage_for(self, storage) as found:
            new_execution = partial(self._new_execution, concurrency=concurrency, on_event=on_event)
            return await runs.resume(self, flow_id, value, storage=found, new_execution=new_execution)

    def resume_sync(self, flow_id: str, value: Any = ..., **options: Unpack[ResumeOptions]) -> dict[str, Any]:
        """:meth:`resume` without an event loop, on the library's background loop."""
        return sync(self.resume(flow_id, value, **options))

    @overload
    async def answer(
        self,
        wait_id: str,
        value: Any,
        *,
        run: Literal[False] = False,
        by: str | None = None,
        storage: Storage | str | None = None,
    ) -> Answered: ...
    @overload
    async def answer(
        self,
        wait_id: str,
        value: Any,
        *,
        run: Literal[True],
        by: str | None = None,
        storage: Storage | str | None = None,
    ) -> dict[str, Any]: ...
    async def answer(
        self,
        wait_id: str,
        value: Any,
        *,
        run: bool = False,
        by: str | None = None,
        storage: Storage | str | None = None,
    ) -> dict[str, Any] | Answered:
        """Store the answer to a wait, even while the run is busy in another branch.

        A worker takes up a parked run at once; with ``run=True`` this call continues it, and returns its final state as
        :meth:`resume` does. A busy run uses the answer when all its branches wait or have ended. A wait is answered
        once: the returned :class:`Answered` says whether this answer was stored, and why not. ``wait_id`` may be the id
        of the run, if it has one open wait. Raises ``UsageError`` if the run never asked this question, and
        ``RunFinished`` if it has finished and was not kept.

        :param by: who answers, for the history of the run.
        """
        async with storage_for(self, storage) as found:
            if not run:
                return await requests.answer(self, wait_id, value, storage=found, by=by)
            try:
                # A run without a runner needs no mail, and no worker can take it up first.
                return await runs.resume(
                    self, wait_id, value, storage=found, new_execution=self._new_execution, wait=0, by=by
                )
            except RunBusy:
                await requests.answer(self, wait_id, value, storage=found, by=by)
            return await runs.resume(self, wait_id, ..., storage=found, new_execution=self._new_execution)

    async def signal(self, flow_id: str, name: str, value: Any = None, *, storage: Storage | str | None = None) -> None:
        """Send a signal to a run, for a ``Wait(..., signal=name)``.

        Signals of one name are used in the order in which they were sent, each by one wait. A signal is stored until
        the run gets to a wait for it, and dropped when the run ends. Raises ``InvalidOption`` if no node of this flow
        waits for the signal, and ``RunFinished`` or ``RunCancelled`` if the run has ended.
        """
        async with storage_for(self, storage) as found:
            await requests.signal(self, flow_of_wait(flow_id) or flow_id, name, value, storage=found)

    async def update(
        self,
        flow_id: str,
        name: str,
        value: Any = None,
        *,
        timeout: float | None = None,
        storage: Storage | str | None = None,
    ) -> Any:
        """Send a signal to a run, and return the reply of the ``Wait(..., signal=name)`` that takes it.

        ``post`` of the wait replies with ``step().reply(value)``, else the reply is ``None``. The reply is read after
        the commit of the wait, so the update has been applied for good. The run may get to the wait later.

        Raises ``TimeoutError`` after ``timeout`` seconds; the run takes the update all the same. Raises the errors of
        :meth:`signal`, ``RunFailed`` or ``RunStuck`` if the run fails or is stuck first, and ``RunFinished`` if it ends
        without a reply, or is not kept after its end.
        """
        async with storage_for(self, storage) as found:
            run = flow_of_wait(flow_id) or flow_id
            return await requests.update(self, run, name, value, timeout=timeout, storage=found)

    async def cancel(self, flow_id: str, reason: str | None = None, *, storage: Storage | str | None = None) -> None:
        """End a run as cancelled, and return when it has ended.

        A node that is running gets ``asyncio.CancelledError``: at once if the run is in this process, else when its
        runner next commits a node or renews its lease, every 3 seconds. A ``def`` hook in a thread ends first. So does
        a node that suppresses the error: if it never returns, this call does not return either. The record is kept, for
        a day unless the flow has ``keep``; ``resume`` and a pending ``run`` raise :class:`RunCancelled`. Cancelling a
        run twice does nothing. Raises ``RunFinished`` if the run finished before.
        """
        async with storage_for(self, storage) as found:
            await requests.cancel(self, flow_of_wait(flow_id) or flow_id, reason, storage=found)

    async def pause(self, flow_id: str, *, storage: Storage | str | None = None) -> None:
        """Stop a run after the nodes that it runs now, and return when it has stopped.

        Its status is ``paused``, and no worker continues it. :meth:`resume` continues it here, ``retry([flow_id])`` on
        a worker. A pending ``run`` raises :class:`RunPaused`. A run that is queued, waits or sleeps is paused at once;
        its timeouts fire when it is resumed. A paused run does not keep its partition. Raises ``RunFinished`` if the
        run finished first.
        """
        async with storage_for(self, storage) as found:
            await requests.pause(self, flow_of_wait(flow_id) or flow_id, storage=found)

    async def retry(
        self,
        flow_ids: Iterable[str] | None = None,
        *,
        status: requests.Retried = "failed",
        limit: int | None = None,
        at: At | None = None,
        storage: Storage | str | None = None,
    ) -> int:
        """Put runs that have failed, are stuck or paused into the queue again, and return how many.

        A call whose outcome is unknown runs again: find out first that it has not happened (:meth:`complete`).

        A worker continues each of them at the node that it stopped at. Raises ``UnknownRun`` if there is no run of one
        of the ids; none is put into the queue then. A run that has finished is left out.

        :param flow_ids: the ids of the runs, or one id; by default all runs of ``status``.
        :param status: ``"failed"``, ``"stuck"`` or ``"paused"``.
        :param limit: the most runs to retry.
        :param at: the node that the named runs go on with: the node, its class, or its path. The shared state stays,
            and the visits are counted on, so a node that has completed gets another ``step().id``.
        """
        async with storage_for(self, storage) as found:
            return await requests.retry(self, flow_ids, status, limit, storage=found, at=at)

    async def fork(
        self,
        run_id: str,
        /,
        *,
        at: At,
        shared: Mapping[str, Any] | None = None,
        flow_id: str | None = None,
        keep: Retention | None = None,
        storage: Storage | str | None = None,
    ) -> RunHandle:
        """Put a new run into the queue that begins at a node, with the state of another run; that one stays as it is.

        The other run is parked, sleeps, is paused or has ended, and its record is kept. The new run has its params, and
        its shared state with the fields of ``shared`` changed::

            handle = await flow.submit({"text": "a b"}, keep=60)
            async with worker([flow]):
                await handle.result(timeout=60)
                fork = await flow.fork(handle.id, at="Read", shared={"text": "c d"})
                await fork.result(timeout=60)

        Raises ``UsageError`` if the other run still runs, or if a run cannot begin at this node: it is in a branch of a
        parallel node, or inside a flow with a ``prep``. Raises ``RunExists`` if there is a run with the new id.

        :param run_id: the id of the other run.
        :param at: the node to begin with: the node, its class, or its path.
        :param shared: the fields to change.
        :param flow_id: the id of the new run; by default a new one.
        :param keep: as for :meth:`submit`.
        """
        check_instance(shared, Mapping, "shared={}: give a dict with the fields to change, or None", optional=True)
        async with storage_for(self, storage) as found:
            forked = await fork(
                self,
                flow_of_wait(run_id) or run_id,
                at,
                checked_shared(None if shared is None else dict(shared)),
                storage=found,
                flow_id=flow_id,
                keep=self.keep if keep is None else checked_retention(keep),
            )
        return RunHandle(forked, self, storage)

    async def complete(
        self,
        flow_id: str,
        node: str,
        *,
        result: Any = None,
        item: int | None = None,
        storage: Storage | str | None = None,
    ) -> None:
        """Say what a call has returned that was interrupted and must not run again, and let a worker continue the run.

        The run is ``stuck``, and its reason names the call: the ``exec`` of a node with ``replay="never"``, or an
        :func:`effect`. Find out what happened outside first, and then
        ``await flow.complete("order-42", "Pay", result="r-815")``. If the call has not happened, :meth:`retry` runs it.

        Raises ``UsageError`` if the node has no such call, or several of them.

        :param node: the path of the node.
        :param result: what the call has returned, or would have returned.
        :param item: the index of the item, if several items of a batch were interrupted.
        """
        async with storage_for(self, storage) as found:
            await requests.complete(self, flow_id, node, result, item, storage=found)

    async def status(self, flow_id: str, *, storage: Storage | str | None = None) -> monitor.Run:
        """Return the status of a run in any process, from its storage; raise ``UnknownRun`` if there is none."""
        async with storage_for(self, storage) as found:
            return await monitor.status(found, flow_of_wait(flow_id) or flow_id)

    async def history(self, flow_id: str, *, storage: Storage | str | None = None) -> RunHistory:
        """Return what the nodes of a run have done, and when, with their waits, from its storage in any process.

        It has at least the last 1,000 nodes that have completed, and the number of older ones. Raises ``UnknownRun`` if
        there is no run, or if it was removed at its end::

            handle = await flow.submit({"text": "a b"})
            for entry in await flow.history(handle.id):
                print(entry.node, entry.started_at, entry.duration, entry.waited, entry.action)
        """
        async with storage_for(self, storage) as found:
            return await monitor.history(found, flow_of_wait(flow_id) or flow_id)

    async def runs(
        self,
        status: monitor.Status | None = None,
        *,
        tags: Mapping[str, str | int] | None = None,
        storage: Storage | str | None = None,
    ) -> AsyncIterator[monitor.Run]:
        """Yield the runs of this flow that have not finished, or those of one status; use ``async for``.

        ``tags``: only runs that were submitted with all of these tags. They are found by an index.
        """
        texts = tag_texts(checked_tags(tags))
        async with storage_for(self, storage) as found:
            async for run in monitor.runs(found, self._title(), status, revision=self.revision, tags=texts):
                yield run

    async def stream(
        self, flow_id: str, *, after: int = 0, storage: Storage | str | None = None
    ) -> AsyncIterator[StreamEntry]:
        """Yield the values that the nodes of a run write with ``step().write(value)``, until the run has ended.

        To continue after a disconnect, in any process, pass the ``number`` of the last value as ``after``. It waits
        while the run waits, sleeps or is paused. Raises ``UnknownRun`` if there is no such run::

            async for entry in flow.stream("order-42"):
                print(entry.value, end="")
        """
        async with storage_for(self, storage) as found, aclosing(follow(found, flow_id, after)) as entries:
            async for entry in entries:
                yield entry

    def subscribe(self, callback: Subscriber) -> Callable[[], None]:
        """Call ``callback(event)`` with every :class:`Event` of this flow's runs in this process.

        Return a function that ends the subscription. If this flow is a node of another flow, it has no run of its
        own, and no events. The rules of :func:`stepwell.nodes.subscribe` apply::

            end = flow.subscribe(lambda event: print(event.kind, event.node, event.duration))
        """
        return add_subscriber(self._subscribers, callback)

    def _kind(self) -> str:
        return UNNAMED if type(self) is NodeFlow else type(self).__name__

    def _new_execution(
        self,
        program: Program,
        flow_id: str | None,
        concurrency: int | None = None,
        on_event: Subscriber | None = None,
        *,
        without_loop: bool = False,
        cancels: bool = False,
        on_begin: Callable[[float | None, int], object] | None = None,
    ) -> Execution:
        if concurrency is not None:
            check_concurrency(concurrency)
        if flow_id is not None:
            check_flow_id(flow_id)
        title = self._title()
        emit = emitter(title, on_event, self._subscribers)
        return Execution(
            program,
            name=title,
            without_loop=without_loop,
            flow_id=flow_id,
            concurrency=concurrency,
            emit=emit,
            cancels=cancels,
            on_begin=on_begin,
        )


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


class SubmitOptions(TypedDict, total=False):
    """The options of :meth:`NodeFlow.submit`."""

    flow_id: str | None
    partition: str | int | None
    after: float | None
    priority: int
    params: Mapping[str, Any] | None
    keep: Retention | None
    tags: Mapping[str, str | int] | None
    timeout: float | None
    on_exists: OnExists | None
    debounce: float | None
    at_most: float | None
    merge: Merge | None
    storage: Storage | str | None


class ResumeOptions(TypedDict, total=False):
    """The options of :meth:`NodeFlow.resume`."""

    storage: Storage | str | None
    concurrency: int | None
    on_event: Subscriber | None
