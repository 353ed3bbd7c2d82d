"""Threads that share the cores of a machine, for ``benchmarks.scale_simulation``.

They are scheduled as by Linux with busy cores:

- A thread that is woken runs on its last core if that is idle, else it waits for the core of the thread that woke it.
- A core runs the thread with the least virtual time, and a waiting thread may replace the running one after a slice.
- A core that has nothing to run takes a waiting thread from another core, at once and at each tick of the clock.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

__all__ = ["Cores", "Task", "Thread"]

#: Seconds that a thread runs before another one may replace it: the base slice of Linux. With it, the clients of
#: PostgreSQL wait as long for a core as measured. And seconds between two ticks.
SLICE, TICK = 0.0007, 0.004
#: How much the CPU time of the same work varies: the standard deviation, as a share of the mean. Measured for the
#: turns of a client: 0.15 to 0.4. Without it, the processes fall into fixed patterns.
VARIATION = 0.2

#: Called when a thread begins it; returns its seconds of CPU time, and a function to call after them.
Task: TypeAlias = Callable[[], tuple[float, Callable[[], None]]]


class _Core:
    def __init__(self) -> None:
        self.thread: Thread | None = None
        self.waiting: list[Thread] = []
        #: Since when the thread runs, and since when its time is not counted yet.
        self.since, self.counted = 0.0, 0.0
        #: The number of the last event; earlier ones are not valid any more.
        self.event = 0


class Thread:
    """An event loop: a turn runs the tasks that were there when it began.

    ``share``: its part of a core that others want too. Linux divides a core between sessions first, and a session's
    part between its processes. ``wake``: seconds of CPU time to begin work after a sleep.
    """

    def __init__(self, cores: Cores, share: float = 1.0, *, wake: float = 0.0) -> None:
        self.share = share
        #: Functions to call at the end of the turn.
        self.at_end: list[Callable[[], None]] = []
        self.core = cores.place()
        self.virtual_time = 0.0
        #: Of the task that it runs: the seconds that are left, and what follows.
        self.left = 0.0
        self.effect: Callable[[], None] | None = None
        self.awake = False
        self._cores = cores
        self._wake, self._slept = wake, False
        self._tasks: deque[Task] = deque()
        self._in_turn = 0

    def add(self, task: Task) -> None:
        """Add a task for the next turn, and wake the thread."""
        self._tasks.append(task)
        if not self.awake:
            self.awake = self._slept = True
            self._cores.wake(self)

    def next(self) -> bool:
        """Begin the next task; return ``False`` if there is none."""
        if not self._in_turn:
            if self.at_end:
                calls, self.at_end = self.at_end, []
                self.left, self.effect = 0.0, lambda: [call() for call in calls] and None
                return True
            self._in_turn = len(self._tasks)
        if not self._in_turn:
            self.awake = False
            return False
        self._in_turn -= 1
        self.left, self.effect = self._tasks.popleft()()
        if self._slept:
            self._slept = False
            self.left += self._wake
        self.left *= self._cores.varied()
        return True


class Cores:
    """The cores of one machine, and its time."""

    def __init__(self, count: int, seed: int) -> None:
        self.now = 0.0
        self._cores = [_Core() for _ in range(count)]
        self._places = 0
        self._dice = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = 0
        #: The core whose thread wakes others.
        self._waker: _Core | None = None
        self._after(TICK, self._tick)

    def place(self) -> _Core:
        """Return the cores in turn, for new threads."""
        self._places += 1
        return self._cores[self._places % len(self._cores)]

    def varied(self) -> float:
        """Return a random factor of CPU time."""
        return self._dice.gammavariate(VARIATION**-2, VARIATION**2)

    def run(self, until: float) -> None:
        """Let the time pass."""
        while self.now < until:
            self.now, _, then = heapq.heappop(self._events)
            then()

    def wake(self, thread: Thread) -> None:
        """Find a core for a thread that has slept."""
        core = thread.core
        if core.thread is not None:
            core = self._waker or core
        times = [each.virtual_time for each in core.waiting]
        if core.thread is not None:
            self._count(core)
            times.append(core.thread.virtual_time)
        # Sleep gives no claim to more than others.
        thread.virtual_time = max([thread.virtual_time, *([min(times)] if times else [])])
        core.waiting.append(thread)
        if core.thread is None:
            self._pick(core)
        else:
            self._replace(core)

    def _after(self, seconds: float, then: Callable[[], None]) -> None:
        self._numbers += 1
        heapq.heappush(self._events, (self.now + seconds, self._numbers, then))

    def _count(self, core: _Core) -> None:
        """Count the time that the thread of a core has run."""
        used, core.counted = self.now - core.counted, self.now
        if core.thread is not None:
            core.thread.left -= used
            core.thread.virtual_time += used / core.thread.share

    def _replace(self, core: _Core) -> None:
        """Let the thread of a core wait if its slice is over and another one has had less."""
        thread = core.thread
        if thread is None or not core.waiting or self.now - core.since < SLICE:
            return
        self._count(core)
        if min(each.virtual_time for each in core.waiting) < thread.virtual_time:
            core.waiting.append(thread)
            core.thread = None
            self._pick(core)

    def _pick(self, core: _Core) -> None:
        """Run the next thread that has a task."""
        while core.waiting or self._take_over(core):
            thread = min(core.waiting, key=lambda each: each.virtual_time)
            core.waiting.remove(thread)
            core.thread, thread.core = thread, core
            core.since = core.counted = self.now
            if self._go(core, thread):
                return
        core.event += 1

    def _take_over(self, core: _Core) -> bool:
        """Move a waiting thread of another core to this one."""
        found = [(thread.virtual_time, at) for at, each in enumerate(self._cores) for thread in each.waiting]
        if not found:
            return False
        other = self._cores[min(found)[1]]
        thread = min(other.waiting, key=lambda each: each.virtual_time)
        other.waiting.remove(thread)
        core.waiting.append(thread)
        return True

    def _go(self, core: _Core, thread: Thread) -> bool:
        if thread.effect is None and not thread.next():
            core.thread = None
            return False
        core.event += 1
        event = core.event
        self._after(max(0.0, thread.left), lambda: self._done(core, thread, event))
        return True

    def _done(self, core: _Core, thread: Thread, event: int) -> None:
        if core.event != event:
            return
        self._count(core)
        effect, thread.effect = thread.effect, None
        self._waker = core
        if effect is not None:
            effect()
        self._waker = None
        # A thread that it has woken may run here now.
        if core.event == event and not self._go(core, thread):
            self._pick(core)

    def _tick(self) -> None:
        self._after(TICK, self._tick)
        for core in self._cores:
            if core.thread is None:
                self._pick(core)
            else:
                self._replace(core)
