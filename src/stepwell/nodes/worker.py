"""A worker: goes on with runs whose runner died, and with those whose time has come."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from stepwell.codec import decode_key
from stepwell.errors import (
    Conflict,
    FlowChanged,
    InvalidOption,
    Parked,
    RunBusy,
    RunFinished,
    RunReplaced,
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

logger = logging.getLogger(__name__)

#: Seconds before a run that is busy, or that could not be resumed, is tried again: the first pause, and the longest.
PAUSES = (0.5, 8.0)
#: The same for a run that this worker cannot run: its flow is not here, or has another graph.
FOREIGN_PAUSES = (8.0, 300.0)


def worker(flows: Iterable[NodeFlow], *, storage: Storage | str | None = None, concurrency: int = 32) -> RunWorker:
    """``async with worker([flow], storage=storage):`` looks after the runs of these flows while the block lasts.

    It resumes runs whose runner died and fires sleeps and timeouts of waits. Any number of workers, in any
    number of processes, may look after the same flows: each run has one runner at a time. A run that has
    failed is left alone: it is resumed by hand, when its cause is fixed.

    :param storage: where the runs are kept; without one, the flows' own storage, else the configured one. One that is
        given as a URL is opened and closed with the block.
    :param concurrency: how many runs this worker runs at once; others wait until one of them ends or parks.
    """
    return RunWorker(flows, storage, concurrency)


class RunWorker:
    """The background task of one worker."""

    def __init__(self, flows: Iterable[NodeFlow], storage: Storage | str | None, concurrency: int) -> None:
        check_concurrency(concurrency)
        known = list(flows)
        self._flows = {flow._title(): flow for flow in known}
        if not known or len(self._flows) < len(known):
            raise InvalidOption("worker() takes flows with different names, at least one")
        bare = [name for name, flow in self._flows.items() if flow.storage is None]
        if storage is None and bare and not is_configured():
            raise InvalidOption(
                f"worker() has no storage to look for runs of {bare[0]!r}: give worker(..., storage=...), "
                "NodeFlow(..., storage=...) or stepwell.configure(storage=...)"
            )
        self._storage = runs.storage_of(known[0], storage)
        self._closes = isinstance(storage, str)
        if storage is None and any(runs.storage_of(flow, None) is not self._storage for flow in known):
            raise InvalidOption("these flows are kept in different storages: give one, or make a worker for each")
        lines = self._storage.queues
        # What this process runs already needs nobody to look after it.
        self._due = DueTasks(
            self._storage,
            RUNS,
            self._go_on,
            what="runs",
            waits=False,
            pauses=PAUSES,
            skip=lines.__contains__,
            at_once=concurrency,
        )

    async def __aenter__(self) -> Self:
        await self._storage.open()
        # A storage that cannot find deadlines says so here.
        await self._storage.due(RUNS, limit=1)
        self._due.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End. What is under way here is interrupted after its last committed node, for others to go on with."""
        await self._due.stop()
        if self._closes:
            await self._storage.close()

    async def _go_on(self, address: Address) -> bool:
        flow_id: Any = address.key
        try:
            flow_id = decode_key(address.key)
            flow = await self._flow_at(address)
            if flow is None:
                self._due.pause(address, FOREIGN_PAUSES)
                return False
            await runs.resume(
                flow, flow_id, ..., storage=self._storage, new_execution=flow._execution_factory(None, None), wait=0
            )
        except (Parked, RunFinished, UnknownRun):
            pass
        except RunBusy:
            # Its runner is alive, in the middle of a long node.
            self._due.pause(address)
            return False
        except (FlowChanged, RunReplaced) as changed:
            logger.warning("%s", changed)
            self._due.pause(address, FOREIGN_PAUSES)
            return False
        except StoredDataError as damaged:
            logger.warning("run %r could not be read: %s", flow_id, damaged)
            self._due.pause(address, FOREIGN_PAUSES)
            return False
        except (Conflict, StorageError) as failure:
            logger.warning("run %r could not be resumed here: %s", flow_id, failure)
            self._due.pause(address)
            return False
        except Exception as error:  # noqa: BLE001 - the run keeps its error
            logger.warning("run %r has failed with %s; its status tells more", flow_id, type(error).__name__)
            self._due.pause(address)
            return False
        self._due.unpause(address)
        return True

    async def _flow_at(self, address: Address) -> NodeFlow | None:
        stored = await self._storage.perform(Get(address))
        if stored is None:
            return None
        name = (await self._storage.read_place(address, stored)).flow
        return None if name is None else self._flows.get(name)
