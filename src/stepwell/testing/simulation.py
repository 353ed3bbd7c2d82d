"""A simulation runs an asyncio program in one thread and in virtual time; a seed chooses the order of its tasks.

The same seed gives the same run on every machine, so a failure that one run in a thousand shows can be repeated::

    for seed in range(1000):
        Simulation(seed).run(main())

What a simulation promises:

- Any asyncio program runs in it unchanged: tasks, timeouts, queues, locks, task groups. ``asyncio.to_thread`` and
  executors call their function in place. There are no sockets, files, signals or other programs.
- Virtual time goes on by itself when every task waits: an hour of sleep takes milliseconds. A callback takes a tiny
  random time. ``time.time()``, ``monotonic()``, ``perf_counter()`` and ``datetime.now()`` return virtual time.
- The seed chooses which of the ready tasks runs next, and sets ``random``, ``os.urandom`` and the ids of Stepwell. In
  some seeds the order is that of asyncio, in others every task may come first. Callbacks that are no tasks keep their
  order, as asyncio promises.
- :meth:`Simulation.process` makes a *process*: a group of tasks with a clock that may differ, which can be killed at
  any of its steps (``dies_at``), paused and resumed. A task belongs to the process of the task that created it. A
  killed process runs no further code, no ``finally`` either. What processes exchange must go through objects that
  you share between them on purpose, such as a storage.
- At the end, ``run`` raises ``AssertionError`` with the line of each task that has not ended, of each read of the clock
  or of real randomness in the user's code, of ``time.sleep`` and of threads, and with errors of tasks that nobody has
  awaited. With ``strict=False`` they are only listed in ``found``; the values are virtual and repeatable in any case.
- It raises ``AssertionError`` too if all tasks wait for ever.
- ``note`` adds a line to the trace, with its virtual time; ``checksum`` tells whether two runs were the same.

Not simulated: threads of C libraries, SQLite and servers, and ``from time import time`` in default arguments.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Collection, Coroutine
from typing import Any, Final, NamedTuple, TypeVar

from stepwell._secrets import quoted
from stepwell.errors import UsageError
from stepwell.options import check_number, check_whole
from stepwell.testing.outside import FoundFault, replaced
from stepwell.testing.simulated_loop import SimulatedLoop, SimulatedProcess

__all__ = ["FoundFault", "SimulatedProcess", "Simulation", "TraceLine"]

T = TypeVar("T")

#: How often a seed chooses the next task at random, from the order of asyncio to no order.
DISORDERS: Final = (0.0, 0.05, 0.3, 1.0)


class TraceLine(NamedTuple):
    """A line of the trace of a simulation.

    Example::

        from stepwell.testing.simulation import Simulation

        simulation = Simulation()
        simulation.note("Ann", "/start", to="bot")
        assert str(simulation.trace[0]) == "    0.000  Ann -> bot: /start"
    """

    #: Virtual seconds since the start.
    at: float
    actor: str
    text: str
    #: Who gets it, if it is a message.
    to: str | None = None

    def __str__(self) -> str:
        where = self.actor if self.to is None else f"{self.actor} -> {self.to}"
        return f"{self.at:9.3f}  {where}: {self.text}"


class Simulation:
    """Runs one asyncio program once, in virtual time. See the module for what it promises.

    ``start``: the time of the system clock at the beginning. ``most_steps``: the number of callbacks after which the
    program counts as endless. ``strict``: raise at the end of ``run`` if something was found. ``allow``: kinds of
    :class:`FoundFault` that are not noted, as ``("clock", "randomness")``. ``disorder``: the share of steps for which
    the next task is chosen at random, from 0 to 1; by default the seed chooses it.

    Example::

        from stepwell.testing.simulation import Simulation

        async def main():
            async with asyncio.timeout(3600):
                await asyncio.sleep(1800)
            return "half an hour later"

        assert Simulation(seed=7).run(main()) == "half an hour later"
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        start: float = 1_700_000_000.0,
        most_steps: int = 1_000_000,
        strict: bool = True,
        allow: Collection[str] = (),
        disorder: float | None = None,
    ) -> None:
        check_whole(seed, "seed must be a whole number, not {}", least=0)
        check_whole(most_steps, "most_steps must be a positive number, not {}", least=1)
        check_number(disorder, "disorder must be a number from 0 to 1, not {}", least=0, optional=True)
        self.seed: int = seed
        self.start: float = start
        #: For choices of the test itself. It does not change the order of tasks.
        self.random: random.Random = random.Random(f"choices {seed}")
        self.entropy: random.Random = random.Random(f"entropy {seed}")
        #: What was found in the program.
        self.found: list[FoundFault] = []
        self.trace: list[TraceLine] = []
        self._strict = strict
        self._allow = frozenset(allow)
        order = random.Random(f"order {seed}")
        chosen = order.choice(DISORDERS)
        self.loop: SimulatedLoop = SimulatedLoop(
            order, disorder=chosen if disorder is None else disorder, most_steps=most_steps
        )
        self.loop.set_exception_handler(self._unhandled)
        self._ran = False

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return self.loop.time()

    @property
    def checksum(self) -> str:
        """A text that two runs share if their steps had the same order and took the same time."""
        return f"{self.loop.steps}-{self.loop.checksum:08x}-{self.loop.time():.6f}"

    def process(self, name: str, *, skew: float = 0.0) -> SimulatedProcess:
        """Return a new process. ``skew``: the seconds that its system clock is ahead."""
        return SimulatedProcess(self.loop, name, skew=skew)

    def note(self, actor: str, text: str, *, to: str | None = None) -> None:
        """Add a line to the trace: who did what, or said what to whom."""
        self.trace.append(TraceLine(self.loop.time(), actor, text, to))

    def find(self, kind: str, what: str, line: str | None) -> None:
        """Add to ``found``."""
        found = FoundFault(kind, what, line)
        if not self.loop.over and kind not in self._allow and found not in self.found:
            self.found.append(found)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run the program to its end, and return its result. A simulation runs once.

        Raises the error of the program, or ``AssertionError`` with what was found; ``UsageError`` in another
        simulation, and for a second run.
        """
        if self._ran:
            main.close()
            raise UsageError("a simulation runs once; make a new Simulation for the next run")
        self._ran = True
        collecting = gc.isenabled()
        # Collections come at other moments in each version of Python, and end objects of the program.
        gc.disable()
        try:
            with replaced(self, self.seed):
                try:
                    result = self.loop.run_until_complete(main)
                finally:
                    self._end()
        finally:
            main.close()
            if collecting:
                gc.enable()
        if self._strict and self.found:
            raise AssertionError(self.report())
        return result

    def report(self) -> str:
        """Return what was found as a text, with the seed."""
        lines = "".join(f"\n  {found}" for found in self.found)
        return f"the simulation with seed {self.seed} has found:{lines}"

    def text(self) -> str:
        """Return the trace as lines of text."""
        return "\n".join(map(str, self.trace))

    def diagram(self) -> str:
        """Return the trace as a sequence diagram in Mermaid."""
        names: dict[str, str] = {}
        lines = []
        for event in self.trace:
            actor = names.setdefault(event.actor, f"p{len(names)}")
            text = event.text.replace(";", ",").replace("#", "").replace("\n", " ")
            if event.to is None:
                lines.append(f"    note over {actor}: {event.at:.3f} {text}")
            else:
                lines.append(f"    {actor}->>{names.setdefault(event.to, f'p{len(names)}')}: {event.at:.3f} {text}")
        people = [f"    participant {short} as {name}" for name, short in names.items()]
        return "\n".join(["sequenceDiagram", *people, *lines])

    def _end(self) -> None:
        """End what the program has left, as ``asyncio.run`` does, and note its tasks."""
        loop = self.loop
        loop.allow_steps(100_000)
        for task in loop.failed():
            error = task.exception()
            what = f"the task {quoted(task.get_name())} has failed and nobody has awaited it"
            self.find("error", f"{what}: {type(error).__name__}: {error}", task.line)
        left = loop.pending()
        for task in left:
            self.find("task", f"the task {quoted(task.get_name())} has not ended; await or cancel it", task.line)
        try:
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=60.0))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.bury()
            loop.close()

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        what = context["message"] + ("" if error is None else f": {type(error).__name__}: {error}")
        self.find("error", what, getattr(context.get("task") or context.get("future"), "line", None))
