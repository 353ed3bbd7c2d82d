"""A worker: runs submitted runs, runs whose runner died, and runs whose sleep or timeout has ended."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from stepwell._secrets import quoted
from stepwell.codec import decode_key
from stepwell.dispatch import dispatcher_of
from stepwell.dispatch.health import POLL_AGE, WRITE_AGE, Health, HealthServer
from stepwell.dispatch.polling import poll
from stepwell.errors import (
    Conflict,
    FlowChanged,
    InvalidOption,
    LeaseLost,
    Parked,
    RunBusy,
    RunCancelled,
    RunFinished,
    RunStuck,
    StepwellError,
    StorageError,
    StoredDataError,
    UnknownRun,
)
from stepwell.nodes.control import runs
from stepwell.nodes.control.options import common_storage
from stepwell.nodes.deploy.graphs import note_graphs
from stepwell.nodes.graph.base import BaseFlow
from stepwell.nodes.queue import partitions
from stepwell.nodes.queue.limits import Limit
from stepwell.nodes.run.errors import summary_of
from stepwell.nodes.run.notices import partitions_topic
from stepwell.nodes.run.table import flow_indexes
from stepwell.nodes.walk.execution import Drain, check_concurrency
from stepwell.nodes.workers.left_runs import of_dead_processes, soon_due
from stepwell.nodes.workers.run_sources import DueRuns, RunSource, sources_of
from stepwell.nodes.workers.schedule import Schedule
from stepwell.nodes.workers.stored import ScheduleTimers
from stepwell.options import check_function, check_instance, check_number
from stepwell.record import RUNS, Address
from stepwell.storage.operations import Get
from stepwell.storage.presence import Presence
from stepwell.storage.state_storage import is_configured
from stepwell.storage.transport.starting import when_available

if TYPE_CHECKING:
    from stepwell.nodes.flow import NodeFlow
    from stepwell.nodes.graph.plan import Program
    from stepwell.nodes.run.monitor import Run
    from stepwell.nodes.run.table import Status
    from stepwell.nodes.walk.execution import Execution
    from stepwell.storage import Storage
    from stepwell.storage.listing import Due

    #: Called with a run that has failed or is stuck.
    RunCallback = Callable[[Run], Awaitable[object] | object]

__all__ = ["worker"]

logger: logging.Logger = logging.getLogger(__name__)

#: The first and the longest pause, in seconds, before a run is retried that this worker cannot run, because it has the
#: flow with another graph.
FOREIGN_PAUSES = (8.0, 300.0)
#: Seconds between two checks of the partitions.
REPAIR_EVERY = 5.0


class RunWorker:
    """A worker that runs submitted runs of these flows: ``async with worker([flow], storage=storage):``.

    ``asyncio.run(worker([flow]).run())`` is a program that works until SIGTERM or Ctrl-C.

    It takes queued runs, resumes runs whose runner died, and fires sleeps and the timeouts of waits. Any number of
    workers, in any number of processes, may have the same flows: each run has one runner at a time. It does not resume
    a run that has failed: fix the cause, then call ``flow.resume()``.

    :param storage: the storage of the runs; by default that of the flows, else the configured one. A URL is opened
        and closed with the block. Flows with equal URLs have one storage; the worker uses that of the first flow.
    :param concurrency: how many runs this worker runs at once; others wait until one of them ends or parks.
    :param limits: limits of single flows, such as ``{"mails": Limit(concurrency=5, rate=(100, 60))}``.
    :param schedules: :func:`every` and :func:`cron`. They are written to the storage, and each tick runs once among all
        workers. All schedules of these flows in the storage run, until :meth:`Schedules.remove` removes them.
    :param on_failed: a ``def`` or ``async def`` that is called with the :class:`Run` after a run of this worker has
        failed. It is called once; a process that is killed just then does not call it. Its errors are logged.
    :param on_stuck: the same for a run that this worker has found to be stuck.
    :param drain: the seconds for which nodes that run may go on after the worker was asked to stop. What they return is
        committed, and the next worker continues with the node after them. Nodes that take longer are interrupted, and
        the next worker runs them again.
    :param lease: the seconds for which the worker claims a run, renewed while it runs. After a crash of the whole
        machine, other machines wait for so long. A longer lease survives longer pauses of the event loop.
    :param presence: write a small record to the storage every 20 seconds, from which the inspector and
        ``stepwell doctor`` know that the worker runs.

    Example::

        handle = await flow.submit({"text": "a b c"})
        async with worker([flow], concurrency=10):
            final = await handle.result(timeout=60)
    """

    def __init__(
        self,
        flows: Iterable[NodeFlow],
        *,
        storage: Storage | str | None = None,
        concurrency: int = 32,
        limits: Mapping[str | NodeFlow, Limit] | None = None,
        schedules: Iterable[Schedule] = (),
        on_failed: RunCallback | None = None,
        on_stuck: RunCallback | None = None,
        drain: float = 30.0,
        lease: float | None = None,
        presence: bool = True,
    ) -> None:
        check_concurrency(concurrency)
        for name, callback in {"on_failed": on_failed, "on_stuck": on_stuck}.items():
            check_function(callback, f"{name}={{}}: give a function that takes the run, or None", optional=True)
        check_number(drain, "drain={}: give a number of seconds, at least 0", least=0)
        check_number(lease, "lease={}: give a number of seconds above 0, or None", above=0, finite=True, optional=True)
        self._on_failed, self._on_stuck = on_failed, on_stuck
        self._drain_seconds, self._lease = drain, lease
        self._drain, self._hurry, self._stopping = Drain(), asyncio.Event(), asyncio.Event()
        known = _checked_flows(flows)
        self._flows = {flow._title(): flow for flow in known}
        named = _limits_by_name(limits, self._flows)
        self._schedules = _checked(schedules, self._flows)
        unstored = [name for name, flow in self._flows.items() if flow.storage is None]
        if storage is None and unstored and not is_configured():
            raise InvalidOption(
                f"worker() has no storage for the runs of {quoted(unstored[0])}: give worker(..., storage=...), "
                "NodeFlow(..., storage=...) or stepwell.configure(storage=...)"
            )
        self._storage = common_storage(known, storage, "worker")
        self._closes = isinstance(storage, str)
        self._sources = [
            *sources_of(self._storage, known, self._take_up, concurrency=concurrency, limits=named),
            ScheduleTimers(self._storage, self._flows),
        ]
        self._repairing: asyncio.Task[None] | None = None
        self._repair_now = asyncio.Event()
        self._taking_over: asyncio.Task[None] | None = None
        self._repairs = partitions.Repairs(self._storage, self._flows)
        self._unlisten: list[Callable[[], None]] = []
        #: Runs that have ended here, failed, were taken from a queue, and were continued after the death of their
        #: runner; leases that were lost.
        self._ended = self._failed = self._taken = self._recovered = self._lost = 0
        #: The seconds that the taken runs have waited in their queues.
        self._waited = 0.0
        #: The seconds from the start of each run here until it has ended or parked.
        self._took = 0.0
        self._announces = presence
        about = {"concurrency": concurrency, "limits": {name: asdict(limit) for name, limit in named.items()}}
        self._presence = Presence(self._storage, "worker", list(self._flows), self._counts, about=about)

    @property
    def flows(self) -> list[NodeFlow]:
        """The flows whose runs it runs."""
        return list(self._flows.values())

    @property
    def storage(self) -> Storage:
        """The storage of the runs."""
        return self._storage

    async def __aenter__(self) -> Self:
        await self._storage.open()
        try:
            # Raises here if the storage does not support deadlines or queues.
            indexes = {name: flow_indexes(name, flow.revision) for name, flow in self._flows.items()}
            soon = await soon_due(self._storage, [index for each in indexes.values() for index in each])
            await self._storage.queued(RUNS, "-", limit=1)
            for schedule in self._schedules:
                await schedule.declare(self._storage)
            await note_graphs(self._storage, self._flows.values())
        except BaseException:
            if self._closes:
                await self._storage.close()
            raise
        logger.info("started a worker of %s", ", ".join(map(quoted, self._flows)))
        self._drain.asked = False
        self._hurry.clear()
        self._stopping.clear()
        if self._announces:
            self._presence.start()
        for source in self._sources:
            dispatcher_of(self._storage).start(source)
        for name in self._flows:
            self._unlisten.append(self._storage.listen(partitions_topic(name), self._repair_now.set))
        repairing = poll(self._repairs.check, self._rest, "partitions")
        self._repairing = asyncio.get_running_loop().create_task(repairing, name="stepwell-partitions")
        self._taking_over = asyncio.get_running_loop().create_task(self._take_over(soon), name="stepwell-take-over")
        return self

    async def __aexit__(self, *error: object) -> None:
        """Stop, as :meth:`stop` does."""
        async with contextlib.AsyncExitStack() as stack:
            # If the stop is cancelled, the rest still stops.
            if self._closes:
                stack.push_async_callback(self._storage.close)
            stack.push_async_callback(self._end_tasks)
            while self._unlisten:
                self._unlisten.pop()()
            stack.push_async_callback(self._presence.stop)
            await self._drain_runs()

    async def stop(self) -> None:
        """Take no more runs, and return when none of this worker runs any more.

        Nodes that run now have the seconds of ``drain`` to end. Their results are committed, and the next worker
        continues with the node after them. What takes longer is interrupted, and runs again. A node in a thread is
        awaited, and its result is committed. A second call, while the first one waits, interrupts at once.

        Example::

            async with worker([flow], drain=60) as running:
                await running.stop()
        """
        if self._stopping.is_set():
            self._hurry.set()
        await self._drain_runs()

    async def _drain_runs(self) -> None:
        self._stopping.set()
        self._drain.asked = True
        dispatcher = dispatcher_of(self._storage)
        stopping = asyncio.ensure_future(dispatcher.stop(*self._sources, timeout=self._drain_seconds))
        hurrying = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait((stopping, hurrying), return_when=asyncio.FIRST_COMPLETED)
        finally:
            hurrying.cancel()
            if not stopping.done():
                # It then interrupts the runs, and waits for them.
                stopping.cancel()
            await asyncio.wait((stopping,))

    async def _end_tasks(self) -> None:
        tasks = [task for task in (self._repairing, self._taking_over) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _take_over(self, soon: list[Due]) -> None:
        """Take those runs whose runner has died on this machine, without waiting for their leases."""
        left = [address async for address in of_dead_processes(self._storage, soon)]
        dispatcher = dispatcher_of(self._storage)
        try:
            for source in self._sources:
                if isinstance(source, DueRuns) and left:
                    await dispatcher.serve_all(source, self._of_flow(source.flow, left))
        except StepwellError as error:
            logger.info("the runs of processes that have died are taken when their leases end (%s)", error)

    async def _of_flow(self, flow: NodeFlow, left: list[Address]) -> AsyncGenerator[Address, None]:
        """Yield those of the runs that are runs of a flow."""
        for address in left:
            stored = await self._storage.perform(Get(address))
            if stored is not None and (await self._storage.read_head(address, stored)).place.flow == flow._title():
                yield address

    async def run(self, *, wait_for_storage: bool = True, health: int | None = None) -> None:
        """Work until SIGTERM or Ctrl-C, then stop as :meth:`stop` does.

        If the storage is away at the start, log it and wait; with ``wait_for_storage=False``, raise its error, as
        ``async with`` does. ``health=8081``: serve ``/health/live`` and ``/health/ready`` on this port.

        A second signal interrupts the runs at once. If the process still waits a second later, for a thread or for a
        node that suppresses its cancellation, the signal ends it.
        """
        loop = asyncio.get_running_loop()
        stopped = asyncio.Event()
        handled: list[signal.Signals] = []

        def stop(number: signal.Signals) -> None:
            if not stopped.is_set():
                stopped.set()
                return
            logger.info("stopping at once; the runs of this worker are interrupted")
            self._hurry.set()
            unhandle()
            stack.callback(loop.call_later(1.0, os.kill, os.getpid(), number).cancel)

        def unhandle() -> None:
            while handled:
                loop.remove_signal_handler(handled.pop())

        async with contextlib.AsyncExitStack() as stack:
            if health is not None:
                await stack.enter_async_context(self._health(health, stopped))
            running = contextlib.AsyncExitStack()
            await when_available(partial(running.enter_async_context, self), self._storage, wait=wait_for_storage)
            stack.callback(unhandle)
            async with running:
                # Outside the main thread, or on Windows, Ctrl-C cancels the task instead.
                with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                    for number in (signal.SIGINT, signal.SIGTERM):
                        loop.add_signal_handler(number, stop, number)
                        handled.append(number)
                await stopped.wait()
                logger.info("stopping; nodes that run have %g s to end", self._drain_seconds)

    def _health(self, port: int, stopped: asyncio.Event) -> HealthServer:
        found = Health(stopped.is_set)
        found.check("poll", lambda: dispatcher_of(self._storage).polled_at, POLL_AGE)
        found.check("write", lambda: self._presence.wrote_at, WRITE_AGE, needed=False)
        return HealthServer(port, found)

    async def _take_up(self, source: RunSource, address: Address) -> bool:
        """Run one run to its end or its next wait, and log why it could not be. Return whether it was started."""
        flow_id: Any = address.key
        flow, started, began = source.flow, False, monotonic()
        if self._drain.asked:
            return False

        def new_execution(program: Program, flow_id: str) -> Execution:
            nonlocal started
            started = True
            source.tried(won=True)
            run = flow._new_execution(program, flow_id, on_begin=self._count_begin)
            run.drain = self._drain
            return run

        news: Status | None = None
        try:
            flow_id = decode_key(address.key)
            await runs.resume(
                flow,
                flow_id,
                ...,
                storage=self._storage,
                new_execution=new_execution,
                wait=0,
                by_worker=True,
                lease_seconds=self._lease,
            )
        except (Parked, RunCancelled, RunFinished, UnknownRun):
            pass
        except RunBusy as busy:
            # Another worker has just taken it, or its runner is in the middle of a long node.
            if busy.partition is None:
                source.tried(won=False)
                source.pauses.add(address)
            return started
        except (FlowChanged, StoredDataError) as failure:
            if not (isinstance(failure, FlowChanged) and failure.stuck):
                logger.warning("run %s could not be resumed here: %s", quoted(flow_id), failure)
                source.pauses.add(address, FOREIGN_PAUSES)
                return started
            # It has neither a deadline nor a queue, so no worker finds it again.
            news = "stuck"
        except RunStuck:
            news = "stuck"
        except (Conflict, StorageError) as failure:
            self._lost += isinstance(failure, LeaseLost)
            logger.warning("run %s could not be resumed here: %s", quoted(flow_id), failure)
            source.pauses.add(address)
            return started
        except Exception as error:  # noqa: BLE001 - the record of the run has the error
            logger.warning("run %s failed with %s; see flow.status()", quoted(flow_id), summary_of(error))
            news = "failed"
        self._ended += 1
        self._took += monotonic() - began
        if news == "failed":
            self._failed += 1
            source.pauses.add(address)
        else:
            source.pauses.remove(address)
        # Not above: an error of a callback would be logged with that of the run, whose message may have a secret.
        if news is not None:
            await self._tell(self._on_failed if news == "failed" else self._on_stuck, flow, flow_id, news)
        return started

    async def _tell(self, callback: RunCallback | None, flow: NodeFlow, flow_id: str, status: Status) -> None:
        """Call a callback with a run, if it has this status. Best effort: errors are logged, not raised."""
        if callback is None:
            return
        try:
            run = await flow.status(flow_id, storage=self._storage)
            # The storage may have been unavailable when the error was to be stored.
            if run.status == status:
                result = callback(run)
                if inspect.isawaitable(result):
                    await result
        except Exception:
            logger.exception("on_%s= of the worker failed for run %s", status, quoted(flow_id))

    def _counts(self) -> dict[str, float]:
        return {
            "done": self._ended,
            "failed": self._failed,
            "taken": self._taken,
            "waited": self._waited,
            "took": self._took,
            "recovered": self._recovered,
            "lost": self._lost,
        }

    def _count_begin(self, waited: float | None, recoveries: int) -> None:
        if waited is not None:
            self._taken += 1
            self._waited += waited
        self._recovered += recoveries > 0

    async def _rest(self, pause: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(pause, REPAIR_EVERY) * self._storage.rng.uniform(0.8, 1.2)):
                await self._repair_now.wait()
        self._repair_now.clear()


def _checked_flows(flows: Iterable[NodeFlow]) -> list[NodeFlow]:
    """Return the flows; raise ``InvalidOption`` if there are none, or if two have one name."""
    check_instance(flows, Iterable, "worker() takes a list of flows, not {}: write worker([flow])")
    known = list(flows)
    if not known:
        raise InvalidOption("worker() needs at least one flow: worker([flow])")
    names: set[str] = set()
    for flow in known:
        check_instance(flow, BaseFlow, "worker() runs flows, not {}: give a NodeFlow")
        if (name := flow._title()) in names:
            raise InvalidOption(f"two flows of worker() are named {quoted(name)}: give one of them another name=...")
        names.add(name)
    return known


def _limits_by_name(limits: Mapping[str | NodeFlow, Limit] | None, flows: Mapping[str, NodeFlow]) -> dict[str, Limit]:
    """Return the limits by the names of their flows; raise ``InvalidOption`` for an unknown flow."""
    found: dict[str, Limit] = {}
    for given, limit in (limits or {}).items():
        name = given if isinstance(given, str) else given._title()
        if name not in flows or not isinstance(limit, Limit):
            raise InvalidOption(
                f"limits={{{quoted(name)}: {quoted(limit)}}}: give flows of this worker, or their names, with "
                f"Limit(...); it has {', '.join(map(quoted, flows))}"
            )
        found[name] = limit
    return found


def _checked(schedules: Iterable[Schedule], flows: Mapping[str, NodeFlow]) -> list[Schedule]:
    """Return the schedules; raise ``InvalidOption`` if two have one name, or if a flow is not one of the worker's."""
    check_instance(schedules, Iterable, "schedules={}: give a list, such as [every(3600, flow)]")
    checked = list(schedules)
    for schedule in checked:
        check_instance(schedule, Schedule, "worker() has the schedule {}: give every(...) or cron(...)")
    names = [schedule.name for schedule in checked]
    for schedule in checked:
        if names.count(schedule.name) > 1:
            raise InvalidOption(f"two schedules are named {quoted(schedule.name)}; give one of them another name=...")
        if flows.get(schedule.flow._title()) is not schedule.flow:
            raise InvalidOption(
                f"the flow of the schedule {quoted(schedule.name)} is not one of this worker's; add it to worker([...])"
            )
    return checked


worker = RunWorker
