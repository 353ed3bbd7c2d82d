"""Submitted runs in the processes of another task queue, instead of workers."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

from stepwell._secrets import quoted
from stepwell.codec import decode_key
from stepwell.errors import InvalidOption, Parked, RunBusy, RunCancelled, RunFinished, StepwellError, UnknownRun
from stepwell.nodes.control import runs
from stepwell.nodes.control.options import common_storage
from stepwell.nodes.queue import partitions
from stepwell.nodes.run.table import flow_indexes
from stepwell.record import RUNS

if TYPE_CHECKING:
    from stepwell.nodes.flow import NodeFlow
    from stepwell.nodes.graph.plan import Program
    from stepwell.nodes.walk.execution import Execution
    from stepwell.storage import Storage

__all__ = ["QueuedRun", "RunTasks"]

logger: logging.Logger = logging.getLogger(__name__)

#: The most runs that ``ready`` yields of the queue of a flow, and of its runs with a deadline in the past.
MOST_READY = 200


class QueuedRun(NamedTuple):
    """A run for which the task queue should have a task."""

    flow: str
    flow_id: str


class RunTasks:
    """Runs submitted runs of some flows, one run for each task.

    A task that is delivered twice does no harm, since a run has one runner at a time.

    ``send``: adds a task for a run to the queue. ``user``: the class of the adapter, for errors. Raises
    ``InvalidOption`` if flows have the same name or different storages.
    """

    def __init__(
        self,
        flows: Iterable[NodeFlow],
        storage: Storage | str | None,
        send: Callable[[QueuedRun], Awaitable[object]],
        *,
        user: str,
    ) -> None:
        known = list(flows)
        self._flows = {flow._title(): flow for flow in known}
        if not known or len(self._flows) < len(known):
            raise InvalidOption(f"{user}() needs at least one flow, and flows with different names")
        self._send = send
        self._user = user
        self.storage: Storage = common_storage(known, storage, user)
        self._repairs = partitions.Repairs(self.storage, self._flows)

    def check(self, flow: NodeFlow) -> str:
        """Return the name of a flow. Raises ``InvalidOption`` unless it is one of these flows."""
        if self._flows.get(flow._title()) is not flow:
            raise InvalidOption(f"flow {quoted(flow._title())} is not one of the flows of this {self._user}")
        return flow._title()

    async def run(self, name: str, flow_id: str) -> Literal["finished", "parked", "busy", "ended"]:
        """Run one run to its end or its next wait, and return how it ended.

        ``busy``: it runs elsewhere, or its runner has died and its lease has not ended: ``ready`` yields it again.
        ``ended``: it has ended before. Raises the error of a node, and ``InvalidOption`` for an unknown flow.
        """
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
                flow, flow_id, ..., storage=self.storage, new_execution=new_execution, wait=0, by_worker=True
            )
        except Parked:
            return "parked"
        except RunBusy:
            return "busy"
        except (RunCancelled, RunFinished, UnknownRun):
            return "ended"
        finally:
            if started:
                await self._send_following(name, flow_id)
        return "finished"

    async def _send_following(self, name: str, flow_id: str) -> None:
        """Send the next run of the partition of a run, which may have ended."""
        try:
            found = await partitions.following(self.storage, name, flow_id)
        except StepwellError as error:
            logger.warning("the run after %s was not sent yet (%s); a sweep sends it", quoted(flow_id), error)
            return
        if found is not None:
            await self._send(QueuedRun(name, found))

    async def ready(self) -> AsyncIterator[QueuedRun]:
        """Yield the runs that can be taken now: queued, answered, due, or left by a runner that has died."""
        await self._repairs.check()
        for name, flow in self._flows.items():
            indexes = flow_indexes(name, flow.revision)
            found = [due.address for due in await self.storage.due(RUNS, flow=indexes, limit=MOST_READY)]
            found += await self.storage.queued(RUNS, indexes, limit=MOST_READY)
            for address in found:
                yield QueuedRun(name, str(decode_key(address.key)))
