"""One execution of a flow: what its nodes, branches and items share, and the limits that they run under."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from stepwell.errors import InvalidOption, TooManySteps
from stepwell.nodes.engine.ids import new_flow_id
from stepwell.nodes.engine.position import Cursor
from stepwell.nodes.engine.workgroup import group_of, marks_of, was_marked_by

if TYPE_CHECKING:
    from stepwell.errors import Parked
    from stepwell.nodes.engine.plan import Graph, Program, Stage

__all__ = ["Emit", "Execution", "Limiter", "check_concurrency"]


class Emit(Protocol):
    """Passes one event to the subscribers."""

    def __call__(
        self,
        kind: str,
        cursor: Cursor,
        *,
        began: float | None = None,
        error: BaseException | None = None,
        done: int | None = None,
        total: int | None = None,
        parked: Parked | None = None,
    ) -> float:
        """Return a time to be given as ``began`` to the event that ends what this one starts."""
        ...


class Execution:
    """The state that the nodes, branches and items of one execution share."""

    __slots__ = (
        "_flow_id",
        "_marked",
        "_steps",
        "_task",
        "began",
        "concurrency",
        "emit",
        "gates",
        "max_steps",
        "name",
        "program",
        "visits",
        "without_loop",
    )

    def __init__(
        self,
        program: Program,
        *,
        name: str,
        without_loop: bool,
        flow_id: str | None = None,
        concurrency: int | None = None,
        emit: Emit | None = None,
    ) -> None:
        self.name = name
        self.without_loop = without_loop
        self.emit = emit
        #: When it began, for the duration in its last event.
        self.began = 0.0
        #: How often each stage was visited, by its index.
        self.visits = [0] * len(program.stages)
        #: How many nodes it may visit in all, those of nested flows and branches among them.
        self.program = program
        self._steps: int | None = None
        self.max_steps = None if program.root.graph is None else program.root.graph.max_steps
        #: The run's own bound, which takes the place of its outermost flow's.
        self.concurrency = concurrency
        self.gates: dict[Graph, asyncio.Semaphore] = {}
        #: The task that began the run, and how often it was cancelled before that.
        self._task = None if without_loop else asyncio.current_task()
        self._marked = 0 if self._task is None else marks_of(self._task)
        # In a list, since it is made when it is first asked for: most runs never need it.
        self._flow_id = [] if flow_id is None else [flow_id]

    @property
    def flow_id(self) -> str:
        if not self._flow_id:
            # Two threads may get here together: append is atomic, and the first one counts.
            self._flow_id.append(new_flow_id(self.name))
        return self._flow_id[0]

    def end(self, kind: str, *, error: BaseException | None = None, parked: Parked | None = None) -> None:
        """Emit the last event of the run."""
        if self.emit is not None:
            self.emit(kind, Cursor(self, self.program.root.path), began=self.began, error=error, parked=parked)

    async def sleep(self, seconds: float) -> None:
        if self.without_loop:
            time.sleep(seconds)  # noqa: ASYNC251 - there is no loop to block
        else:
            await asyncio.sleep(seconds)

    def cancelling(self, error: BaseException | None = None) -> bool:
        """Return whether the running task was cancelled; ``error`` is the error that its work has just raised."""
        if self.without_loop:
            return False
        task = asyncio.current_task()
        if task is None:
            return False
        if task is not self._task and (group := group_of(task)) is not None:
            return group.ending()
        count = task.cancelling() - (self._marked if task is self._task else 0)
        if count == 1 and was_marked_by(error):
            count -= 1
            task.uncancel()
        return count > 0

    def bound(self, graph: Graph) -> int | None:
        """Return the limit of one walk of a graph. The outermost graph is limited by :meth:`check_steps` instead."""
        return None if graph is self.program.root.graph else graph.max_steps

    def check_steps(self, stage: Stage) -> None:
        """Raise ``TooManySteps`` if this visit exceeds the limit. A flow counts as the nodes inside it."""
        if self.max_steps is None or stage.graph is not None:
            return
        if self._steps is None:
            # A resumed run has visited some already.
            self._steps = sum([self.visits[known.index] for known in self.program.stages if known.graph is None])
        if self._steps >= self.max_steps:
            raise TooManySteps(self.name, self.max_steps, stage.name)
        self._steps += 1

    def limiter(self, stage: Stage) -> Limiter | None:
        """Return the limiter for an ``exec`` of this stage, or ``None`` if nothing limits it."""
        if self.without_loop or not stage.limits:
            return None
        passes = []
        for graph in stage.limits:
            limit = graph.limit
            if graph is stage.limits[-1] and self.concurrency is not None:
                limit = self.concurrency
            if limit is not None:
                passes.append(self.gates.get(graph) or self.gates.setdefault(graph, asyncio.Semaphore(limit)))
        return Limiter(passes) if passes else None


class Limiter:
    """Acquires several semaphores, always in the same order, and releases them.

    An ``exec`` holds them, and waits for nothing that needs one: limiters cannot deadlock.
    """

    __slots__ = ("_passes",)

    def __init__(self, passes: list[asyncio.Semaphore]) -> None:
        self._passes = passes

    async def __aenter__(self) -> None:
        held = 0
        try:
            for semaphore in self._passes:
                await semaphore.acquire()
                held += 1
        except BaseException:
            for semaphore in self._passes[:held]:
                semaphore.release()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for semaphore in self._passes:
            semaphore.release()


def check_concurrency(concurrency: object) -> None:
    """Raise ``InvalidOption`` unless this is a whole number of at least 1."""
    if not isinstance(concurrency, int) or isinstance(concurrency, bool) or concurrency < 1:
        raise InvalidOption(f"concurrency={concurrency!r}: give a whole number of at least 1")
