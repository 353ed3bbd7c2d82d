"""A simulated world: processes that are killed, stopped, paused and started again, over one server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextvars import Context
from typing import Any, ClassVar

from stepwell import Storage
from stepwell.errors import StorageError
from stepwell.testing.simulated_store import NETWORK_FAULTS, SimulatedStore
from stepwell.testing.simulation import SimulatedProcess, Simulation
from tests.simulation.faults import Fault, draw

__all__ = ["Life", "World", "quiet"]

#: Seconds after which a stopped process is killed.
STOPS_WITHIN = 60.0


class Life:
    """One life of a process, from its start to its end."""

    def __init__(self, world: World, slot: str, process: SimulatedProcess) -> None:
        self.world = world
        self.slot = slot
        self.process = process
        self.lines: list[list[Any]] = []
        self.task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> str:
        return self.process.name

    def report(self, *line: Any) -> None:
        """Note what this process has done, as the processes of the other tests write it to their log."""
        self.lines.append(list(line))
        self.world.simulation.note(self.pid, " ".join(map(str, line)))

    def reported(self, word: str) -> list[list[Any]]:
        return [line for line in self.lines if line[0] == word]


class World(ABC):
    """One simulated world. Its seed decides everything, unless ``faults`` are given."""

    #: The processes, and the kinds of faults that each of them can have.
    places: ClassVar[Mapping[str, Sequence[str]]] = {}
    #: The seconds, the steps of a process and the requests in which faults happen, and the most faults.
    span: ClassVar[float] = 20.0
    steps: ClassVar[int] = 400
    requests: ClassVar[int] = 60
    most: ClassVar[int] = 8

    def __init__(self, seed: int, faults: Sequence[Fault] | None = None) -> None:
        self.seed = seed
        self.simulation = Simulation(seed, allow=("clock",))
        self.choose = random.Random(f"world {seed}")
        drawn = random.Random(f"faults {seed}")
        self.faults = (
            list(faults)
            if faults is not None
            else draw(drawn, self.places, span=self.span, steps=self.steps, requests=self.requests, most=self.most)
        )
        # Of its own, so that a run with other faults is the same in all else.
        chosen = random.Random(f"settings {seed}")
        self.skews = {slot: chosen.choice([0.0, 0.0, -30.0, 45.0]) for slot in sorted(self.places)}
        #: Seconds for which lanes send a batch again. Without patience, the outcome of a lost write is unknown.
        self.patience = chosen.choice([10.0, 10.0, 0.01])
        self.store = SimulatedStore(self.simulation, fault=self._fault_of)
        #: All lives of all processes, and the present one of each.
        self.lives: list[Life] = []
        self.present: dict[str, Life] = {}
        #: How many faults have happened, by kind.
        self.happened: Counter[str] = Counter()
        self._by_request: dict[str, dict[int, str]] = defaultdict(dict)
        self._requests: Counter[str] = Counter()
        self._kills: dict[str, list[int]] = defaultdict(list)
        for fault in self.faults:
            if fault.kind == "kill":
                self._kills[fault.where].append(int(fault.at))
            elif fault.kind not in ("pause", "stop"):
                self._by_request[fault.where][int(fault.at)] = fault.kind
        self._calm = False
        self._supervisors: list[asyncio.Task[None]] = []

    @abstractmethod
    async def live(self) -> None:
        """Let things happen, wait until everything has settled, and check it."""

    def run(self) -> None:
        """Run the world once. Raises ``AssertionError`` if a promise is broken."""
        with quiet():
            self.simulation.run(self._main())

    async def _main(self) -> None:
        disturbing = asyncio.create_task(self._disturb())
        try:
            await self.live()
        finally:
            disturbing.cancel()
            for life in self.present.values():
                life.process.kill()
            for task in self._supervisors:
                task.cancel()
            await asyncio.wait([disturbing, *self._supervisors])
        for task in self._supervisors:
            if not task.cancelled():
                task.result()

    # Processes

    def storage(self, **options: Any) -> Storage:
        """Return the storage of a process."""
        return self.store.storage(patience=self.patience, **options)

    def keep(self, slot: str, main: Callable[[Life], Coroutine[Any, Any, None]]) -> None:
        """Run a process, and start it again after each death, until the end or until it returns."""
        self._supervisors.append(asyncio.create_task(self._supervise(slot, main)))

    async def _supervise(self, slot: str, main: Callable[[Life], Coroutine[Any, Any, None]]) -> None:
        while True:
            number = sum(life.slot == slot for life in self.lives) + 1
            process = self.simulation.process(f"{slot}.{number}", skew=self.skews.get(slot, 0.0))
            if not self._calm and self._kills[slot]:
                process.dies_at = self._kills[slot].pop(0)
            life = self.present[slot] = Life(self, slot, process)
            self.lives.append(life)
            ended = asyncio.Event()
            process.on_death.append(ended.set)
            life.task = process.start(main(life))
            life.task.add_done_callback(lambda _, ended=ended: ended.set(), context=Context())
            await ended.wait()
            if not process.dead:
                # Everything of the process ends with its main task.
                process.kill()
                error = None if life.task.cancelled() else life.task.exception()
                if not life.task.cancelled() and not _is_outage(error):
                    life.task.result()
                    return
                self.simulation.note(process.name, f"ends: {error!r}" if error else "stops")
            else:
                self.happened["kill"] += 1
                self.simulation.note(process.name, "dies")
            await asyncio.sleep(self.choose.choice([0.0, 0.1, 2.0]))

    async def _disturb(self) -> None:
        for fault in sorted(self.faults, key=lambda fault: fault.at):
            if fault.kind in ("pause", "stop"):
                await asyncio.sleep(max(fault.at - self.simulation.now, 0.0))
                life = self.present.get(fault.where)
                if life is None or life.process.dead:
                    continue
                self.happened[fault.kind] += 1
                self.simulation.note(life.pid, str(fault))
                if fault.kind == "pause":
                    life.process.pause(fault.seconds)
                elif life.task is not None:
                    life.task.cancel()
                    asyncio.get_running_loop().call_later(STOPS_WITHIN, life.process.kill)

    def calm(self) -> None:
        """Let no more faults happen."""
        self._calm = True
        for life in self.present.values():
            life.process.dies_at = None
            life.process.resume()

    def fault_at(self, where: str) -> str | None:
        """Count a request to a place, and return its fault."""
        self._requests[where] += 1
        kind = None if self._calm else self._by_request[where].get(self._requests[where])
        if kind is not None:
            self.happened[kind] += 1
        return kind

    def _fault_of(self, process: SimulatedProcess | None, number: int) -> str | None:
        if process is None:
            return None
        kind = self.fault_at(process.name.partition(".")[0])
        return kind if kind in NETWORK_FAULTS else None

    # For checks

    def reports(self, word: str) -> list[list[Any]]:
        return [line for life in self.lives for line in life.reported(word)]

    async def until(self, look: Callable[[], object | Awaitable[object]], what: str, *, seconds: float = 300.0) -> None:
        """Wait until something is true. Raises ``AssertionError`` after so many virtual seconds."""
        end = self.simulation.now + seconds
        while True:
            found = look()
            if isinstance(found, Awaitable):
                found = await found
            if found:
                return
            for task in self._supervisors:
                if task.done():
                    task.result()
            assert self.simulation.now < end, f"not within {seconds:g} s: {what}"
            await asyncio.sleep(0.25)


def _is_outage(error: BaseException | None) -> bool:
    """Return whether a process has ended because the storage was away, as an operator would start it again."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_outage, error.exceptions))
    return isinstance(error, StorageError)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Log nothing: the library warns of each fault."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
