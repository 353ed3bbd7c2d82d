"""The stored runs of a flow: resuming, answering, cancelling, pausing, retrying and reading them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

from stepwell._portal import sync
from stepwell.errors import RunBusy
from stepwell.nodes.control import requests, runs
from stepwell.nodes.control.options import storage_for
from stepwell.nodes.events import Subscriber, add_subscriber, emitter
from stepwell.nodes.graph.building import NodeGraph
from stepwell.nodes.graph.plan import Program
from stepwell.nodes.run import monitor
from stepwell.nodes.run.ids import check_flow_id, flow_of_wait
from stepwell.nodes.run.waits import Answered
from stepwell.nodes.stream import StreamEntry, follow
from stepwell.nodes.walk.execution import Execution, check_concurrency

if TYPE_CHECKING:
    from stepwell.storage import Storage

__all__ = ["FlowRuns"]


class FlowRuns(NodeGraph):
    """The methods of :class:`NodeFlow` for runs that are stored, and for the events of its runs."""

    _subscribers: list[Subscriber]

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

    @overload
    async def answer(
        self, wait_id: str, value: Any, *, run: Literal[False] = False, storage: Storage | str | None = None
    ) -> Answered: ...
    @overload
    async def answer(
        self, wait_id: str, value: Any, *, run: Literal[True], storage: Storage | str | None = None
    ) -> dict[str, Any]: ...
    async def answer(
        self, wait_id: str, value: Any, *, run: bool = False, storage: Storage | str | None = None
    ) -> dict[str, Any] | Answered:
        """Store the answer to a wait, even while the run is busy in another branch.

        A worker takes up a parked run at once; with ``run=True`` this call continues it, and returns its final state as
        :meth:`resume` does. A busy run uses the answer when all its branches wait or have ended. A wait is answered
        once: the returned :class:`Answered` says whether this answer was stored, and why not. ``wait_id`` may be the id
        of the run, if it has one open wait. Raises ``UsageError`` if the run never asked this question, and
        ``RunFinished`` if it has finished and was not kept.
        """
        async with storage_for(self, storage) as found:
            if not run:
                return await requests.answer(self, wait_id, value, storage=found)
            try:
                # A run without a runner needs no mail, and no worker can take it up first.
                return await runs.resume(self, wait_id, value, storage=found, new_execution=self._new_execution, wait=0)
            except RunBusy:
                await requests.answer(self, wait_id, value, storage=found)
            return await runs.resume(self, wait_id, ..., storage=found, new_execution=self._new_execution)

    async def signal(self, flow_id: str, name: str, value: Any = None, *, storage: Storage | str | None = None) -> None:
        """Send a signal to a run, for a ``Wait(..., signal=name)``.

        Signals of one name are used in the order in which they were sent, each by one wait. A signal is stored until
        the run gets to a wait for it, and dropped when the run ends. Raises ``InvalidOption`` if no node of this flow
        waits for the signal, and ``RunFinished`` or ``RunCancelled`` if the run has ended.
        """
        async with storage_for(self, storage) as found:
            await requests.signal(self, flow_of_wait(flow_id) or flow_id, name, value, storage=found)

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
        storage: Storage | str | None = None,
    ) -> int:
        """Put runs that have failed, are stuck or paused into the queue again, and return how many.

        A worker continues each of them at the node that it stopped at. Raises ``UnknownRun`` if there is no run of one
        of the ids; none is put into the queue then. A run that has finished is left out.

        :param flow_ids: the ids of the runs, or one id; by default all runs of ``status``.
        :param status: ``"failed"``, ``"stuck"`` or ``"paused"``.
        :param limit: the most runs to retry.
        """
        async with storage_for(self, storage) as found:
            return await requests.retry(self, flow_ids, status, limit, storage=found)

    async def status(self, flow_id: str, *, storage: Storage | str | None = None) -> monitor.Run:
        """Return the status of a run in any process, from its storage; raise ``UnknownRun`` if there is none."""
        async with storage_for(self, storage) as found:
            return await monitor.status(found, flow_of_wait(flow_id) or flow_id)

    async def runs(
        self, status: monitor.Status | None = None, *, storage: Storage | str | None = None
    ) -> AsyncIterator[monitor.Run]:
        """Yield the runs of this flow that have not finished, or those of one status; use ``async for``."""
        async with storage_for(self, storage) as found:
            async for run in monitor.runs(found, self._title(), status, revision=self.revision):
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

    def _new_execution(
        self,
        program: Program,
        flow_id: str | None,
        concurrency: int | None = None,
        on_event: Subscriber | None = None,
        *,
        without_loop: bool = False,
        cancels: bool = False,
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
        )
