"""A worker: goes on with runs whose runner died, and with those whose time has come."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from stepwell.codec import decode_key
from stepwell.errors import (
    Conflict,
    FlowChanged,
    InvalidOption,
    Parked,
    RunFinished,
    StepwellError,
    StorageError,
    UnknownRun,
)
from stepwell.nodes import runs
from stepwell.record import RUNS, Address
from stepwell.storage import Due
from stepwell.storage.operations import Get

if TYPE_CHECKING:
    from stepwell.nodes.flow import NodeFlow
    from stepwell.storage import Storage

__all__ = ["Worker", "worker"]

logger = logging.getLogger(__name__)

#: Seconds between two looks at what is due.
TICK = 0.5
#: How many runs one worker goes on with at the same time.
AT_ONCE = 32
PAGE = 200
#: Seconds before a run that cannot be gone on with is looked at again: the first pause, and the longest.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0


def worker(flows: Iterable[NodeFlow], *, storage: Storage | None = None) -> Worker:
    """``async with worker([flow], storage=storage):`` looks after the runs of these flows while the block lasts.

    It resumes runs whose runner died and fires sleeps and timeouts of waits. Any number of workers, in any
    number of processes, may look after the same flows: each run has one runner at a time. A run that has
    failed is left alone: it is resumed by hand, when its cause is mended.
    """
    return Worker(flows, storage)


class Worker:
    """The background task of one worker."""

    def __init__(self, flows: Iterable[NodeFlow], storage: Storage | None) -> None:
        known = list(flows)
        self._flows = {flow._title(): flow for flow in known}
        if not known or len(self._flows) < len(known):
            raise InvalidOption("worker() takes flows with different names, at least one")
        self._storage = runs.storage_of(known[0], storage)
        if storage is None and any(runs.storage_of(flow, None) is not self._storage for flow in known):
            raise InvalidOption("these flows are kept in different storages: give one, or make a worker for each")
        self._task: asyncio.Task[None] | None = None
        self._running: dict[Address, asyncio.Task[None]] = {}
        #: Those that could not be gone on with: how often, and not before when (loop time).
        self._pauses: dict[Address, tuple[int, float]] = {}

    async def __aenter__(self) -> Self:
        await self._storage.open()
        # A storage that cannot find deadlines says so here.
        await self._storage.due(RUNS, limit=1)
        self._task = asyncio.get_running_loop().create_task(self._work(), name="stepwell-worker")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End. What is under way here is interrupted after its last committed node, for others to go on with."""
        tasks = [task for task in (self._task, *self._running.values()) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _work(self) -> None:
        while True:
            try:
                await self.tick()
            except StorageError as failure:
                # Runs wait in the storage: nothing is lost while it is away.
                logger.warning("runs cannot be read: %s", failure)
            except StepwellError:
                logger.exception("this worker ends")
                return
            await asyncio.sleep(TICK * random.uniform(0.8, 1.2))

    async def tick(self) -> int:
        """Begin with what is due now, as far as there is room; how many were begun."""
        seen: set[Address] = set()
        begun = 0
        last: Due | None = None
        while page := await self._storage.due(RUNS, limit=PAGE, after=last):
            last = page[-1]
            seen.update(due.address for due in page)
            for address in [due.address for due in page if not self._pausing(due.address)]:
                if len(self._running) >= AT_ONCE:
                    return begun
                begun += self._begin(address)
            if len(page) < PAGE:
                break
        self._pauses = {address: pause for address, pause in self._pauses.items() if address in seen}
        return begun

    def _begin(self, address: Address) -> bool:
        # What this process runs already needs nobody to look after it.
        if address in self._running or address in self._storage.lines:
            return False
        task = asyncio.get_running_loop().create_task(self._go_on(address), name=f"stepwell-run {address.key}")
        self._running[address] = task
        task.add_done_callback(lambda _: self._running.pop(address, None))
        return True

    async def _go_on(self, address: Address) -> None:
        flow_id: Any = decode_key(address.key)
        try:
            flow = await self._flow_at(address)
            if flow is None:
                self._pause(address)
                return
            await runs.take_over(flow, self._storage, flow_id)
        except (Parked, RunFinished, UnknownRun):
            pass
        except Conflict:
            # Its runner is alive, in the middle of a long node; or another one has taken it from us.
            self._pause(address)
            return
        except FlowChanged as changed:
            logger.warning("%s", changed)
            self._pause(address)
            return
        except StorageError as failure:
            logger.warning("run %r cannot be gone on with: %s", flow_id, failure)
            self._pause(address)
            return
        except Exception as error:  # noqa: BLE001 - the run keeps its error
            logger.warning("run %r has failed with %s; its status tells more", flow_id, type(error).__name__)
            self._pause(address)
            return
        self._pauses.pop(address, None)

    async def _flow_at(self, address: Address) -> NodeFlow | None:
        stored = await self._storage.perform(Get(address))
        if stored is None:
            return None
        name = self._storage.seal(address).head_back(stored.head).flow
        return None if name is None else self._flows.get(name)

    def _pausing(self, address: Address) -> bool:
        return address in self._pauses and self._pauses[address][1] > asyncio.get_running_loop().time()

    def _pause(self, address: Address) -> None:
        times = self._pauses.get(address, (0, 0.0))[0]
        pause = min(FIRST_PAUSE * 2**times, LONGEST_PAUSE)
        self._pauses[address] = (times + 1, asyncio.get_running_loop().time() + pause)
