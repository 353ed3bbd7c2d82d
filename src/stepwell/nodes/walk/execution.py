"""One execution of a flow: the state and limits that its nodes, branches and items share, and their positions."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from contextvars import ContextVar, Token
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from stepwell.errors import TooManySteps
from stepwell.nodes.effects import EffectPlace
from stepwell.nodes.run.ids import new_flow_id
from stepwell.nodes.walk.workgroup import group_of, left_by_task_group, past_cancellations
from stepwell.options import check_whole

if TYPE_CHECKING:
    from stepwell.errors import Parked
    from stepwell.nodes.graph.plan import Graph, Program, Stage
    from stepwell.nodes.run.branch import Branch

__all__ = [
    "CaughtError",
    "Cursor",
    "Drain",
    "Emit",
    "EventKind",
    "Execution",
    "Limiter",
    "check_concurrency",
    "current",
    "enter",
    "leave",
]


EventKind = (
    Literal["run.started", "run.finished", "run.failed", "run.parked", "run.cancelled", "run.stuck"]
    | Literal["node.started", "node.retried", "node.progress", "node.finished", "node.failed"]
    | Literal["item.started", "item.retried", "item.finished", "item.failed"]
)


class Drain:
    """Whether the worker of a run stops: nodes and items that run now end, and no others start."""

    __slots__ = ("asked",)

    def __init__(self) -> None:
        self.asked: bool = False


_NO_DRAIN = Drain()

#: Seconds after which work that never suspends lets the event loop run other tasks.
SLICE = 0.01
_NEVER = float("inf")


class Emit(Protocol):
    """Passes one event to the subscribers."""

    def __call__(self, kind: EventKind, cursor: Cursor, *, began: float | None = None, **fields: Any) -> float:
        """Return the time to pass as ``began`` with the event that ends this one; ``fields`` are those of ``Event``."""


class CaughtError(NamedTuple):
    """The error of a node that its edge ``"error"`` has caught.

    Example::

        class Apologise(Node):
            def post(self, shared, prep_res, exec_res):
                caught: CaughtError | None = step().error
                shared["answer"] = f"{caught.node} failed: {caught.message}"

        ask = Node(name="ask")
        ask - "error" >> Apologise()
    """

    #: The path of the node that failed.
    node: str
    #: The name of the error's class.
    type_name: str
    #: At most 500 characters.
    message: str


class Execution:
    """The state that the nodes, branches and items of one execution share."""

    def __init__(
        self,
        program: Program,
        *,
        name: str,
        without_loop: bool,
        flow_id: str | None = None,
        concurrency: int | None = None,
        emit: Emit | None = None,
        cancels: bool = False,
        on_begin: Callable[[float | None, int], object] | None = None,
    ) -> None:
        self.name = name
        self.without_loop = without_loop
        self.emit = emit
        #: Whether a durable run ends as cancelled if its call is cancelled.
        self.cancels: bool = cancels
        #: Called with the seconds in the queue and the number of recoveries when a stored run begins or goes on.
        self.on_begin: Callable[[float | None, int], object] | None = on_begin
        #: The fields of its first event.
        self.beginning: dict[str, Any] = {}
        #: That of its worker.
        self.drain: Drain = _NO_DRAIN
        #: When it began, for the duration in its last event.
        self.began: float = 0.0
        #: Of a run without a storage: the stage, the node, the visit and the result of each node that can be undone.
        self.completed: list[tuple[Stage, Any, int, Any]] = []
        #: When to call :meth:`yield_now` next, by ``perf_counter()``; 0 before the first call.
        self.yield_at: float = _NEVER if without_loop else 0.0
        #: How often each stage was visited, by its index.
        self.visits: list[int] = [0] * len(program.stages)
        self.program = program
        self._steps: int | None = None
        #: The most nodes to visit, including those of nested flows and branches.
        self.max_steps: int | None = None if program.root.graph is None else program.root.graph.flow.max_steps
        #: The limit of this run, which replaces that of the outermost flow.
        self.concurrency = concurrency
        self._semaphores: dict[Graph, asyncio.Semaphore] = {}
        #: The task that started the run, and its number of cancellations before the run.
        self._task = None if without_loop else asyncio.current_task()
        self._past_cancellations = 0 if self._task is None else past_cancellations(self._task)
        # Created on first use, since most runs need no id.
        self._flow_id = [] if flow_id is None else [flow_id]

    @property
    def flow_id(self) -> str:
        if not self._flow_id:
            # Two threads may get here at once: append is atomic, and the first id is used.
            self._flow_id.append(new_flow_id(self.name))
        return self._flow_id[0]

    def end(self, kind: EventKind, *, error: BaseException | None = None, parked: Parked | None = None) -> None:
        """Emit the last event of the run."""
        if self.emit is not None:
            self.emit(kind, Cursor(self, self.program.root.path), began=self.began or None, error=error, parked=parked)

    async def sleep(self, seconds: float) -> None:
        if self.without_loop:
            time.sleep(seconds)  # noqa: ASYNC251 - there is no loop to block
        else:
            await asyncio.sleep(seconds)

    async def yield_now(self) -> None:
        """Let the event loop run other tasks, so that timeouts and cancellations reach a loop that never suspends."""
        if self.yield_at:
            await asyncio.sleep(0)
        self.yield_at = time.perf_counter() + SLICE

    def cancelling(self, error: BaseException | None = None) -> bool:
        """Return whether the current task was cancelled; ``error`` is the error that its work has just raised."""
        if self.without_loop:
            return False
        task = asyncio.current_task()
        if task is None:
            return False
        if task is not self._task and (group := group_of(task)) is not None:
            return group.ending()
        count = task.cancelling() - (self._past_cancellations if task is self._task else 0)
        if count == 1 and left_by_task_group(error):
            count -= 1
            task.uncancel()
        return count > 0

    def check_steps(self, stage: Stage) -> None:
        """Raise ``TooManySteps`` if this visit exceeds the limit. A flow counts as the nodes inside it."""
        if self.max_steps is None or stage.graph is not None:
            return
        if self._steps is None:
            # A resumed run has visited some nodes before.
            self._steps = sum([self.visits[known.index] for known in self.program.stages if known.graph is None])
        if self._steps >= self.max_steps:
            raise TooManySteps(self.name, self.max_steps, stage.name)
        self._steps += 1

    def limiter(self, stage: Stage) -> Limiter:
        """Return the limiter for an ``exec`` of this stage."""
        semaphores = []
        for graph in () if self.without_loop else stage.limits:
            limit = graph.flow.concurrency
            if graph is stage.limits[-1] and self.concurrency is not None:
                limit = self.concurrency
            if limit is not None:
                semaphores.append(self._semaphores.setdefault(graph, asyncio.Semaphore(limit)))
        return Limiter(semaphores)


@dataclass(slots=True, eq=False)
class Cursor:
    """The position of one branch of an execution, which the runner moves."""

    run: Execution
    node: str
    _: KW_ONLY
    visit: int = 1
    item: int | None = None
    attempt: int = 1
    #: The branch of a durable run.
    branch: Branch | None = None
    #: The attempts of the last ``exec`` that ended.
    attempts: int = 1
    #: How many effects the step has called; shared with copies for threads.
    effects: list[int] | None = None
    #: The beginning of their numbers, within a part of the step that may be left out when the step runs again.
    scope: str = ""
    #: The last error that an edge ``"error"`` has caught in this branch.
    caught: CaughtError | None = None

    def copy(self) -> Cursor:
        return replace(self)

    def effect_place(self, number: str | None = None) -> EffectPlace:
        """Return the place of an effect; without a number, that of the next one in the step."""
        if number is None:
            if self.effects is None:
                self.effects = [0]
            self.effects[0] += 1
            number = f"{self.scope}{self.effects[0]}"
        return EffectPlace(self.node, self.visit, self.item, number)

    def values(self) -> dict[str, Any]:
        """Return the fields of ``Step``, which can be sent to another process."""
        return {
            "flow_id": self.run.flow_id,
            "node": self.node,
            "visit": self.visit,
            "item": self.item,
            "attempt": self.attempt,
            "error": self.caught,
        }


_current: ContextVar[Cursor] = ContextVar("stepwell.nodes.step")


def enter(cursor: Cursor) -> Token[Cursor]:
    """Make this the position of the current context."""
    return _current.set(cursor)


def leave(token: Token[Cursor]) -> None:
    """Undo an :func:`enter`."""
    # A discarded coroutine is closed in another context, where the token is not valid.
    with contextlib.suppress(ValueError):
        _current.reset(token)


def current() -> Cursor | None:
    """Return the position of the current context, or ``None`` outside a run."""
    return _current.get(None)


class Limiter:
    """Acquires any number of semaphores, always in the same order, and releases them.

    An ``exec`` that holds them waits for nothing else that needs one, so limiters cannot deadlock.
    """

    def __init__(self, semaphores: list[asyncio.Semaphore]) -> None:
        self.semaphores = semaphores

    async def __aenter__(self) -> None:
        for held, semaphore in enumerate(self.semaphores):
            try:
                await semaphore.acquire()
            except BaseException:
                for acquired in self.semaphores[:held]:
                    acquired.release()
                raise

    async def __aexit__(self, *error: object) -> None:
        for semaphore in self.semaphores:
            semaphore.release()


def check_concurrency(concurrency: object) -> None:
    """Raise ``InvalidOption`` unless this is a whole number of at least 1."""
    check_whole(concurrency, "concurrency={}: give a whole number of at least 1", least=1)
