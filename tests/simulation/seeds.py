"""Seeds: which world a seed has, what a failing one prints, and the runs of many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.simulation.bots import PollingBot, Updates
from tests.simulation.faults import Fault, shrunk
from tests.simulation.logs import Logs, Timers
from tests.simulation.records import Records
from tests.simulation.runs import Storm
from tests.simulation.turns import Agents
from tests.simulation.world import World

__all__ = ["Tally", "explain", "failure_of", "run_seeds", "world_of"]

#: The worlds of twenty seeds in a row. The slow ones are rare.
WORLDS: tuple[type[World], ...] = (
    Records, Updates, PollingBot, Logs, Agents, Records, Timers, PollingBot, Updates, Logs,
    Records, PollingBot, Timers, Agents, Updates, Records, PollingBot, Logs, Storm, Timers,
)  # fmt: skip


def world_of(seed: int, faults: Sequence[Fault] | None = None) -> World:
    """Return the world of a seed, with these faults in place of its own."""
    return WORLDS[seed % len(WORLDS)](seed, faults)


def failure_of(world: World) -> BaseException | None:
    """Run a world, and return the error with which it ends."""
    try:
        world.run()
    except (Exception, BaseExceptionGroup) as error:
        return error
    return None


def explain(seed: int) -> str:
    """Return one line that repeats a failing seed, with the fewest faults with which it fails in the same way."""
    world = world_of(seed)
    error = failure_of(world)
    assert error is not None, f"the seed {seed} does not fail"

    def fails(faults: list[Fault]) -> bool:
        return type(failure_of(world_of(seed, faults))) is type(error)

    few = "; ".join(map(str, shrunk(world.faults, fails))) or "none"
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return f"make simulate SEED={seed}  # {type(world).__name__}: {what:.300} | faults that suffice: {few}"


@dataclass
class Tally:
    """What many seeds have come to."""

    seeds: int = 0
    steps: int = 0
    #: Virtual seconds.
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.seeds += other.seeds
        self.steps += other.steps
        self.seconds += other.seconds
        self.faults += other.faults
        self.failed += other.failed

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items()))
        hours, faults = self.seconds / 3600, sum(self.faults.values())
        return f"{self.seeds} seeds, {self.steps} steps, {hours:.1f} virtual hours; {faults} faults: {kinds}"


def run_seeds(seeds: Iterable[int]) -> Tally:
    """Run many seeds, one after the other."""
    tally = Tally()
    for seed in seeds:
        world = world_of(seed)
        if failure_of(world) is not None:
            tally.failed.append(seed)
        tally.seeds += 1
        tally.steps += world.simulation.loop.steps
        tally.seconds += world.simulation.now
        tally.faults += world.happened
    return tally
