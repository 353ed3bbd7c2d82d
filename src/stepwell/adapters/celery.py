"""Celery: the workers of a Celery application run submitted runs.

A task carries only the name of the flow and the id of the run; the state of the run is in its storage::

    app = Celery("orders", broker="redis://localhost/0")
    runs = CeleryRuns(app, [orders], storage="postgresql://localhost/orders")

    handle = runs.submit_sync(orders, {"order": 42}, flow_id="order-42")

Start ``celery -A orders worker`` in any number of processes, and one ``celery -A orders beat``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from stepwell import sync
from stepwell.engine import RUNS, decode_key, quoted, require
from stepwell.errors import InvalidOption, Parked, RunBusy, RunCancelled, RunFinished, StepwellError, UnknownRun
from stepwell.nodes.control import runs
from stepwell.nodes.control.options import common_storage
from stepwell.nodes.handle import RunHandle
from stepwell.nodes.queue import partitions
from stepwell.nodes.run.table import flow_indexes
from stepwell.options import check_number

if TYPE_CHECKING:
    from celery import Celery

    from stepwell import Storage
    from stepwell.nodes.flow import NodeFlow
    from stepwell.nodes.graph.plan import Program
    from stepwell.nodes.walk.execution import Execution

__all__ = ["CeleryRuns"]

require("celery", "celery")

logger: logging.Logger = logging.getLogger(__name__)

#: The most tasks that a sweep sends for the queue of a flow, and for its runs with a deadline in the past.
MOST_SWEPT = 200


class CeleryRuns:
    """Runs submitted runs of these flows in the workers of a Celery application.

    It registers two tasks. ``stepwell.run`` runs one run to its end or its next wait. A task that is delivered twice
    does no harm, since a run has one runner at a time. ``stepwell.sweep``, which Celery beat sends every ``sweep``
    seconds, sends a task for each run that has none: its sleep or timeout has ended, it was answered, its runner died,
    or the process that submitted it died before it sent the task.

    :param flows: the flows, with different names. Every process of the application needs all of them.
    :param storage: the storage of the runs; by default that of the flows, else the configured one. Each process opens
        it on first use.
    :param sweep: the seconds between two sweeps.

    Example::

        from celery import Celery
        from stepwell.adapters.celery import CeleryRuns

        app = Celery("bot", broker="redis://localhost")
        runs = CeleryRuns(app, [flow], storage="sqlite:///flows.db")
    """

    def __init__(
        self,
        app: Celery,
        flows: Iterable[NodeFlow],
        *,
        storage: Storage | str | None = None,
        sweep: float = 10.0,
    ) -> None:
        known = list(flows)
        self._flows = {flow._title(): flow for flow in known}
        if not known or len(self._flows) < len(known):
            raise InvalidOption("CeleryRuns() needs at least one flow, and flows with different names")
        check_number(sweep, "sweep={}: give a number of seconds above 0", above=0)
        self._storage = common_storage(known, storage, "CeleryRuns")
        self._repairs = partitions.Repairs(self._storage)

        # Celery accepts functions, and no bound methods.
        def run(flow: str, flow_id: str) -> str:
            return sync(self._run(flow, flow_id))

        def send_due_runs() -> None:
            sync(self._sweep())

        # Acknowledged at its end, so that Celery delivers the task of a killed worker process again.
        late = {"acks_late": True, "reject_on_worker_lost": True}
        self._task: Any = app.task(run, name="stepwell.run", ignore_result=True, **late)
        app.task(send_due_runs, name="stepwell.sweep", ignore_result=True)
        self._sweep_seconds = sweep
        # Celery adds it when the application is configured, which may be later.
        app.add_periodic_task(sweep, app.signature("stepwell.sweep"), name="stepwell.sweep", expires=sweep)

    async def submit(
        self, flow: NodeFlow, shared: dict[str, Any] | None = None, *, flow_id: str | None = None, **options: Any
    ) -> RunHandle:
        """Store a run and send its task; return its handle.

        ``options`` are those of :meth:`NodeFlow.submit`: ``partition``, ``after``, ``priority``, ``params``, ``keep``.
        ``after`` is as exact as the sweeps, and ``priority`` orders only runs that wait for a sweep. If the broker is
        unavailable, the run is stored all the same, and a later sweep sends its task.
        """
        self._check(flow)
        handle = await flow.submit(shared, flow_id=flow_id, storage=self._storage, **options)
        if options.get("after") is None:
            await asyncio.to_thread(self._send, flow._title(), handle.id)
        return handle

    def submit_sync(
        self, flow: NodeFlow, shared: dict[str, Any] | None = None, *, flow_id: str | None = None, **options: Any
    ) -> RunHandle:
        """:meth:`submit` without an event loop."""
        return sync(self.submit(flow, shared, flow_id=flow_id, **options))

    def send(self, flow: NodeFlow, flow_id: str) -> None:
        """Send the task of a run now, for example after ``flow.answer()``, without waiting for the next sweep."""
        self._check(flow)
        self._send(flow._title(), flow_id)

    def _check(self, flow: NodeFlow) -> None:
        if self._flows.get(flow._title()) is not flow:
            raise InvalidOption(f"flow {quoted(flow._title())} is not one of the flows of this CeleryRuns")

    def _send(self, flow: str, flow_id: str, **options: Any) -> None:
        try:
            self._task.apply_async((flow, flow_id), **options)
        except Exception as error:  # noqa: BLE001 - the transports of Celery raise errors of many libraries
            logger.warning(
                "the task of run %s was not sent (%s); the run is stored, and a sweep sends it",
                quoted(flow_id),
                type(error).__name__,
            )

    async def _run(self, name: str, flow_id: str) -> str:
        """Run one run to its end or its next wait."""
        flow = self._flows.get(name)
        if flow is None:
            raise InvalidOption(
                f"flow {quoted(name)} of run {quoted(flow_id)} is not one of the flows of this application"
            )
        started = False

        def new_execution(program: Program, flow_id: str) -> Execution:
            nonlocal started
            started = True
            return flow._new_execution(program, flow_id)

        try:
            await runs.resume(
                flow, flow_id, ..., storage=self._storage, new_execution=new_execution, wait=0, by_worker=True
            )
        except Parked:
            return "parked"
        except RunBusy:
            # It runs elsewhere, or its runner has died and its lease has not ended: then a sweep sends it again.
            return "busy"
        except (RunCancelled, RunFinished, UnknownRun):
            return "ended"
        finally:
            if started:
                await self._send_next(flow, flow_id)
        return "finished"

    async def _send_next(self, flow: NodeFlow, flow_id: str) -> None:
        """Send the task of the next run of the partition of a run, which may have ended."""
        try:
            following = await partitions.following(self._storage, flow._title(), flow_id)
        except StepwellError as error:
            logger.warning("the run after %s was not sent yet (%s); a sweep sends it", quoted(flow_id), error)
            return
        if following is not None:
            await asyncio.to_thread(self._send, flow._title(), following)

    async def _sweep(self) -> None:
        """Send a task for each run that can be taken now."""
        for flow in self._flows.values():
            await self._repairs.check(flow._title())
            indexes = flow_indexes(flow._title(), flow.revision)
            found = [due.address for due in await self._storage.due(RUNS, flow=indexes, limit=MOST_SWEPT)]
            found += await self._storage.queued(RUNS, indexes, limit=MOST_SWEPT)
            for address in found:
                flow_id = str(decode_key(address.key))
                # The next sweep finds the run again if no worker was free for it.
                await asyncio.to_thread(self._send, flow._title(), flow_id, expires=self._sweep_seconds)
