"""A worker: resumes runs whose runner died, and runs whose sleep or timeout has ended."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

from stepwell.codec import decode_key
from stepwell.errors import (
    Conflict,
    FlowChanged,
    InvalidOption,
    Parked,
    RunBusy,
    RunFinished,
    StorageError,
    StoredDataError,
    UnknownRun,
)
from stepwell.nodes.engine import runs
from stepwell.nodes.engine.execution import check_concurrency
from stepwell.record import RUNS, Address
from stepwell.storage.operations import Get
from stepwell.storage.poller import DueTasks
from stepwell.storage.state_storage import is_configured

if TYPE_CHECKING:
    from stepwell.nodes.flow import NodeFlow
    from stepwell.storage import Storage

__all__ = ["worker"]

logger: logging.Logger = logging.getLogger(__name__)

#: The first and the longest pause, in seconds, before a run that is busy or could not be resumed is retried.
PAUSES = (0.5, 8.0)
#: The same for a run that this worker cannot run, because it does not have the flow or has it with another graph.
FOREIGN_PAUSES = (8.0, 300.0)


class RunWorker:
    """A worker that resumes the runs of these flows: ``async with worker([flow], storage=storage):``.

    It resumes runs whose runner died, and fires sleeps and the timeouts of waits. Any number of workers, in any
    number of processes, may have the same flows: each run has one runner at a time. It does not resume a run that
    has failed: fix the cause, then call ``flow.resume()``.

    :param storage: the storage of the runs; by default that of the flows, else the configured one. A URL is opened
        and closed with the block.
    :param concurrency: how many runs this worker runs at once; others wait until one of them ends or parks.
    """

    def __init__(
        self, flows: Iterable[NodeFlow], *, storage: Storage | str | None = None, concurrency: int = 32
    ) -> None:
        check_concurrency(concurrency)
        known = list(flows)
        self._flows = {flow._title(): flow for flow in known}
        if not known or len(self._flows) < len(known):
            raise InvalidOption("worker() needs at least one flow, and flows with different names")
        unstored = [name for name, flow in self._flows.items() if flow.storage is None]
        if storage is None and unstored and not is_configured():
            raise InvalidOption(
                f"worker() has no storage for the runs of {unstored[0]!r}: give worker(..., storage=...), "
                "NodeFlow(..., storage=...) or stepwell.configure(storage=...)"
            )
        self._storage = runs.storage_of(known[0], storage)
        self._closes = isinstance(storage, str)
        if storage is None and any(runs.storage_of(flow, None) is not self._storage for flow in known):
            raise InvalidOption("these flows have different storages: make a worker for each storage")
        self._due = DueTasks(
            self._storage,
            RUNS,
            self._handle,
            what="runs",
            waits=False,
            pauses=PAUSES,
            # This process runs them already.
            skip=self._storage.waiters.__contains__,
            at_once=concurrency,
        )

    async def __aenter__(self) -> Self:
        await self._storage.open()
        # Raises here if the storage does not support deadlines.
        await self._storage.due(RUNS, limit=1)
        self._due.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Stop. Runs of this worker are interrupted; another worker continues after their last committed node."""
        await self._due.stop()
        if self._closes:
            await self._storage.close()

    async def _handle(self, address: Address) -> bool:
        pauses = await self._resume(address)
        if pauses is None:
            self._due.unpause(address)
        else:
            self._due.pause(address, pauses)
        return pauses is None

    async def _resume(self, address: Address) -> tuple[float, float] | None:
        """Resume a run; return the pauses before the next attempt, or ``None`` if there is nothing left to do."""
        flow_id: Any = address.key
        try:
            flow_id = decode_key(address.key)
            flow = await self._flow_at(address)
            if flow is None:
                return FOREIGN_PAUSES
            await runs.resume(flow, flow_id, ..., storage=self._storage, new_execution=flow._new_execution, wait=0)
        except (Parked, RunFinished, UnknownRun):
            return None
        except RunBusy:
            # Its runner is alive, in the middle of a long node.
            return PAUSES
        except (FlowChanged, StoredDataError) as failure:
            logger.warning("run %r could not be resumed here: %s", flow_id, failure)
            return FOREIGN_PAUSES
        except (Conflict, StorageError) as failure:
            logger.warning("run %r could not be resumed here: %s", flow_id, failure)
            return PAUSES
        except Exception as error:  # noqa: BLE001 - the record of the run has the error
            logger.warning("run %r failed with %s; see flow.status()", flow_id, type(error).__name__)
            return PAUSES
        return None

    async def _flow_at(self, address: Address) -> NodeFlow | None:
        stored = await self._storage.perform(Get(address))
        if stored is None:
            return None
        name = (await self._storage.read_place(address, stored)).flow
        return None if name is None else self._flows.get(name)


worker = RunWorker
