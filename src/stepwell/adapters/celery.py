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
from stepwell.engine import quoted, require
from stepwell.nodes import NodeFlow, RunHandle
from stepwell.nodes.engine import QueuedRun, RunTasks
from stepwell.options import check_number

if TYPE_CHECKING:
    from celery import Celery

    from stepwell import Storage

__all__ = ["CeleryRuns"]

require("celery", "celery")

logger: logging.Logger = logging.getLogger(__name__)


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
        check_number(sweep, "sweep={}: give a number of seconds above 0", above=0)
        self._runs = RunTasks(flows, storage, self._send, user="CeleryRuns")

        # Celery accepts functions, and no bound methods.
        def run(flow: str, flow_id: str) -> str:
            return sync(self._runs.run(flow, flow_id))

        def send_due_runs() -> None:
            sync(self._sweep())

        # Acknowledged at its end, so that Celery delivers the task of a killed worker process again.
        late = {"acks_late": True, "reject_on_worker_lost": True}
        self._task: Any = app.task(run, name="stepwell.run", ignore_result=True, **late)
        app.task(send_due_runs, name="stepwell.sweep", ignore_result=True)
        self._sweep_seconds = sweep
        # Celery adds it when the application is configured, which may be later.
        app.add_periodic_task(sweep, app.signature("stepwell.sweep"), name="stepwell.sweep", expires=sweep)

    @property
    def storage(self) -> Storage:
        """The storage of the runs."""
        return self._runs.storage

    async def submit(
        self, flow: NodeFlow, shared: dict[str, Any] | None = None, *, flow_id: str | None = None, **options: Any
    ) -> RunHandle:
        """Store a run and send its task; return its handle.

        ``options`` are those of :meth:`NodeFlow.submit`, such as ``partition``, ``after``, ``priority`` and ``tags``.
        ``after`` is as exact as the sweeps, and ``priority`` orders only runs that wait for a sweep. If the broker is
        unavailable, the run is stored all the same, and a later sweep sends its task.
        """
        name = self._runs.check(flow)
        handle = await flow.submit(shared, flow_id=flow_id, storage=self._runs.storage, **options)
        if options.get("after") is None and options.get("debounce") is None:
            await self._send(QueuedRun(name, handle.id))
        return handle

    def submit_sync(
        self, flow: NodeFlow, shared: dict[str, Any] | None = None, *, flow_id: str | None = None, **options: Any
    ) -> RunHandle:
        """:meth:`submit` without an event loop."""
        return sync(self.submit(flow, shared, flow_id=flow_id, **options))

    def send(self, flow: NodeFlow, flow_id: str) -> None:
        """Send the task of a run now, for example after ``flow.answer()``, without waiting for the next sweep."""
        self._send_now(QueuedRun(self._runs.check(flow), flow_id))

    async def _send(self, run: QueuedRun, **options: Any) -> None:
        await asyncio.to_thread(self._send_now, run, **options)

    def _send_now(self, run: QueuedRun, **options: Any) -> None:
        try:
            self._task.apply_async(run, **options)
        except Exception as error:  # noqa: BLE001 - the transports of Celery raise errors of many libraries
            logger.warning(
                "the task of run %s was not sent (%s); the run is stored, and a sweep sends it",
                quoted(run.flow_id),
                type(error).__name__,
            )

    async def _sweep(self) -> None:
        """Send a task for each run that can be taken now."""
        async for run in self._runs.ready():
            # The next sweep finds the run again if no worker was free for it.
            await self._send(run, expires=self._sweep_seconds)
