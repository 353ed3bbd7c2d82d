"""A handle of a submitted run: its status and its result."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepwell._secrets import quoted
from stepwell.codec.large import open_data
from stepwell.errors import RunCancelled, RunStuck
from stepwell.nodes.control import requests
from stepwell.nodes.control.options import storage_for
from stepwell.nodes.queue import children
from stepwell.nodes.run import monitor
from stepwell.nodes.run.errors import failure_of
from stepwell.nodes.run.notices import ends_of
from stepwell.nodes.run.reading import ReadRun, read_known_run
from stepwell.nodes.walk.execution import current
from stepwell.options import check_number

if TYPE_CHECKING:
    from stepwell.nodes.graph.base import BaseFlow
    from stepwell.nodes.history import RunHistory
    from stepwell.nodes.run.waits import Answered
    from stepwell.nodes.walk.execution import Cursor
    from stepwell.storage import Storage

__all__ = ["RunHandle"]

#: The first and the longest pause between two reads of a run in another process, in seconds.
FIRST_POLL, LONGEST_POLL = 0.01, 1.0


class RunHandle:
    """A run that was submitted. ``RunHandle(flow_id, flow)`` is the handle of any run that is known by its id.

    Example::

        handle = await flow.submit({})
        async with worker([flow]):
            final = await RunHandle(handle.id, flow).result(timeout=60)
    """

    __slots__ = ("_flow", "_storage", "created", "id")

    def __init__(
        self,
        id: str,  # noqa: A002
        flow: BaseFlow,
        storage: Storage | str | None = None,
        *,
        created: bool = False,
    ) -> None:
        #: The id of the run.
        self.id: str = id
        #: Whether the call of ``submit`` that returned this handle has started a new run.
        self.created: bool = created
        self._flow = flow
        self._storage = storage

    def __repr__(self) -> str:
        return f"RunHandle({self.id!r})"

    async def status(self) -> monitor.Run:
        """Return the status of the run, from its storage; raise ``UnknownRun`` if it was removed."""
        async with storage_for(self._flow, self._storage) as storage:
            return await monitor.status(storage, self.id)

    async def history(self) -> RunHistory:
        """Return what the nodes of the run have done; see :meth:`NodeFlow.history`."""
        async with storage_for(self._flow, self._storage) as storage:
            return await monitor.history(storage, self.id)

    async def answer(self, value: Any, wait_id: str | None = None) -> Answered:
        """Store the answer to a wait of the run, by default to its only open one; a worker continues the run.

        Return what has become of it; see :meth:`NodeFlow.answer`.
        """
        async with storage_for(self._flow, self._storage) as storage:
            return await requests.answer(self._flow, self.id if wait_id is None else wait_id, value, storage=storage)

    async def cancel(self, reason: str | None = None) -> None:
        """End the run as cancelled, and return when it has ended; see :meth:`NodeFlow.cancel`."""
        async with storage_for(self._flow, self._storage) as storage:
            await requests.cancel(self._flow, self.id, reason, storage=storage)

    async def result(self, timeout: float | None = None) -> dict[str, Any]:
        """Wait until the run has finished, and return its final state. It waits while the run waits,
        sleeps or is paused.

        :param timeout: the seconds after which ``TimeoutError`` is raised; the run goes on.

        In a node of a durable run, the result of a child of this run parks the run instead. The node runs again from
        its start when the child has ended, or after ``timeout``.

        Raises ``RunFailed`` with the last error, ``RunStuck`` or ``RunCancelled`` if the run ends without a result,
        and ``UnknownRun`` if it has ended and was not kept long enough.
        """
        check_number(timeout, "timeout={}: give a number of seconds, or None", optional=True)
        if (cursor := current()) is not None and cursor.branch is not None:
            final = await self._child_result(cursor, timeout)
            if final is not None:
                return final
        limit = asyncio.timeout(timeout)
        table: dict[str, Any] = {}
        try:
            async with limit, storage_for(self._flow, self._storage) as storage:
                await storage.ensure_open()
                pause = FIRST_POLL
                with ends_of(storage, self.id) as wait:
                    while True:
                        run = await read_known_run(storage, self.id)
                        table = run.table
                        final = await self._final_of(storage, run)
                        if final is not None:
                            return final
                        await wait(pause * storage.rng.uniform(0.8, 1.2))
                        pause = min(1.5 * pause, LONGEST_POLL)
        except TimeoutError:
            if timeout is None or not limit.expired():
                raise
            raise TimeoutError(f"run {quoted(self.id)} {self._unfinished(table)} after {timeout:g} s") from None

    def _unfinished(self, table: Mapping[str, Any]) -> str:
        """Return the text of the error for a run with this table that did not finish in time."""
        match table.get("status"):
            case None:
                return "could not be read"
            case "queued":
                return f"is queued (does a worker have flow {quoted(self._flow._title())} and this storage?)"
            case "paused":
                return f"is paused (flow.resume({quoted(self.id)}) continues it)"
            case status:
                return f"is {status}"

    async def _child_result(self, cursor: Cursor, timeout: float | None) -> dict[str, Any] | None:
        """Return the final state of a child, or park the node of its parent; ``None`` if the run is not a child."""
        async with storage_for(self._flow, self._storage) as storage:
            await storage.ensure_open()
            run = await read_known_run(storage, self.id)
            if run.table.get("parent") != cursor.run.flow_id:
                return None
            final = await self._final_of(storage, run)
        if final is None:
            raise children.park_for(cursor, self.id, timeout)
        return final

    async def _final(self, storage: Storage) -> dict[str, Any] | None:
        """Return the final state of the run, or ``None`` if it has not ended."""
        return await self._final_of(storage, await read_known_run(storage, self.id))

    async def _final_of(self, storage: Storage, run: ReadRun) -> dict[str, Any] | None:
        table = run.table
        match table["status"]:
            case "finished":
                return await open_data(storage.seal(run.address), run.stored.fields)
            case "failed":
                raise failure_of(self.id, table)
            case "stuck":
                raise RunStuck(self.id, table.get("stuck", "see flow.status()"))
            case "cancelled":
                raise RunCancelled(self.id, table.get("cancelled") or None)
        return None
