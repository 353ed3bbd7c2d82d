"""An event loop in virtual time that runs one callback at a time, in an order that a seed chooses."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sys
import sysconfig
import warnings
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar
from functools import cache
from heapq import heapify, heappop, heappush
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn, TypeVar
from weakref import WeakSet

import stepwell
from stepwell.options import check

__all__ = ["SimulatedLoop", "SimulatedProcess", "SimulatedTask", "current_process", "is_of_user", "line_of_user"]

T = TypeVar("T")

#: The most virtual seconds that one callback takes.
TICK: Final = 0.0001
#: Timers after which those that were cancelled are removed.
MOST_TIMERS: Final = 512
#: The steps of one dead task that are run to end it.
MOST_CLOSINGS: Final = 50
#: Code of others: the standard library, installed packages, and Stepwell itself.
_OF_OTHERS: Final = tuple(
    {
        *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        str(Path(stepwell.__file__).parent) + os.sep,
        "<frozen",
    }
)

current_process: ContextVar[SimulatedProcess | None] = ContextVar("stepwell_simulated_process", default=None)


@cache
def is_of_user(file: str) -> bool:
    """Return whether a file has code of the user."""
    return not file.startswith(_OF_OTHERS) and os.sep + "site-packages" + os.sep not in file


def line_of_user(frame: FrameType | None, *, calling: bool = False) -> str | None:
    """Return the line of the first frame that is code of the user; ``calling``: only if it is this frame itself."""
    while frame is not None:
        if is_of_user(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if calling:
            return None
        frame = frame.f_back
    return None


class SimulatedTask(asyncio.Task[T]):
    """A task with a number, which is its hash, so that sets of tasks have the same order in each run."""

    def __init__(
        self, coro: Generator[Any, Any, T] | Coroutine[Any, Any, T], number: int, line: str | None, **options: Any
    ) -> None:
        # First, because asyncio puts the task into a set.
        self.number: int = number
        #: Where the user's code has created it.
        self.line: str | None = line
        context: Context | None = options.get("context")
        self.process: SimulatedProcess | None = (
            current_process.get() if context is None else context.get(current_process)
        )
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self.number


class SimulatedProcess:
    """A process of a simulation: its tasks see its clock, and they stop together when it dies or is paused.

    A task belongs to the process of the task that has created it. Processes share no tasks and no connections, but they
    share the modules of Python, and so the globals of these.

    Example::

        from stepwell.testing.simulation import Simulation

        simulation = Simulation(seed=1)

        async def main():
            worker = simulation.process("worker")
            task = worker.start(asyncio.sleep(3600))
            worker.kill()
            await asyncio.sleep(7200)
            assert not task.done()

        simulation.run(main())
    """

    def __init__(self, loop: SimulatedLoop, name: str, *, skew: float = 0.0) -> None:
        self.name: str = name
        #: Seconds that ``time.time()`` of this process is ahead.
        self.skew: float = skew
        #: How many times its tasks were started or went on after an ``await``.
        self.steps: int = 0
        #: The process dies instead of this step; ``None``: never.
        self.dies_at: int | None = None
        self.dead: bool = False
        self.paused: bool = False
        #: Called when it dies.
        self.on_death: list[Callable[[], object]] = []
        self._loop = loop
        self._held: list[asyncio.Handle] = []

    def __repr__(self) -> str:
        return f"SimulatedProcess({self.name!r})"

    def start(self, main: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Run a coroutine in this process. It inherits no context variables."""
        check(asyncio.iscoroutine(main), "start() takes a coroutine, got {}", main)
        context = Context()
        context.run(current_process.set, self)
        return self._loop.create_task(main, name=name or self.name, context=context)

    def kill(self) -> None:
        """End the process at once, as ``kill -9`` does: none of its code runs again, no ``finally`` either."""
        if not self.dead:
            self.dead = True
            self._held.clear()
            for call in self.on_death:
                call()

    def pause(self, seconds: float | None = None) -> None:
        """Stop the process, as ``SIGSTOP`` does, until ``resume()``, or for so many seconds. Its clock goes on."""
        self.paused = True
        if seconds is not None:
            self._loop.call_later(seconds, self.resume, context=Context())

    def resume(self) -> None:
        """Let a paused process go on."""
        self.paused = False
        held, self._held = self._held, []
        for handle in held:
            self._loop.put(handle)

    def hold(self, handle: asyncio.Handle) -> None:
        """Keep a callback until the process goes on. For the event loop."""
        self._held.append(handle)


def _unsupported(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(
            f"a simulation has no sockets, files, signals or other programs, so the loop has no {name}(); "
            "use storages in memory and clients that need no network"
        )

    return refuse


class SimulatedLoop(asyncio.BaseEventLoop):
    """See :mod:`stepwell.testing.simulation`.

    ``disorder``: the share of steps for which a task is chosen at random; the others run in the order of asyncio.
    """

    def __init__(self, rng: random.Random, *, disorder: float, most_steps: int) -> None:
        super().__init__()
        self._rng = rng
        self._disorder = disorder
        self._most_steps = most_steps
        self._now = 0.0
        self._waiting: list[asyncio.Handle] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_number = 0
        #: The tasks that have not ended, by number. It is cleaned when it has grown.
        self._tasks: dict[int, SimulatedTask[Any]] = {}
        self._task_number = 0
        self._most_tasks = 64
        #: The async generators of processes.
        self._generators: WeakSet[Any] = WeakSet()
        #: The number of callbacks that were run, and a checksum of their order.
        self.steps: int = 0
        self.checksum: int = 0
        #: Whether the program has ended, and only dead tasks are left.
        self.over: bool = False

    def __del__(self) -> None:
        # It holds nothing that must be closed.
        pass

    # Time and callbacks

    def time(self) -> float:
        return self._now

    def allow_steps(self, steps: int) -> None:
        """Allow so many steps from now on."""
        self._most_steps = self.steps + steps

    def advance(self, seconds: float) -> None:
        """Let the time pass, as blocking code does."""
        self._now += max(seconds, 0.0)

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        handle = asyncio.Handle(callback, args, self, context)
        self._waiting.append(handle)
        return handle

    # There are no other threads.
    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:  # type: ignore[override]
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timer_number += 1
        if len(self._timers) >= MOST_TIMERS:
            self._timers = [each for each in self._timers if not each[2].cancelled()]
            heapify(self._timers)
        heappush(self._timers, (when, self._timer_number, timer))
        return timer

    def put(self, handle: asyncio.Handle) -> None:
        """Run a callback that was held."""
        self._waiting.append(handle)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def _run_once(self) -> None:
        """Run one callback. ``BaseEventLoop`` calls it until the loop is stopped."""
        waiting, timers = self._waiting, self._timers
        while True:
            while timers and (timers[0][0] <= self._now or timers[0][2].cancelled()):
                waiting.append(heappop(timers)[2])
            if waiting:
                handle = self._chosen(waiting)
                if not handle.cancelled():
                    break
            elif timers:
                self._now = timers[0][0]
            elif self._stopping:  # type: ignore[attr-defined]
                return
            else:
                raise AssertionError(f"the simulation waits for ever: {self._unfinished()}")
        process = handle._context.get(current_process)  # type: ignore[attr-defined]
        task = getattr(handle._callback, "__self__", None)  # type: ignore[attr-defined]
        number = task.number if type(task) is SimulatedTask else 0
        if process is not None:
            if process.dead:
                return
            if process.paused:
                process.hold(handle)
                return
            if number:
                process.steps += 1
                if process.steps == process.dies_at:
                    process.kill()
                    return
        self.steps += 1
        if self.steps > self._most_steps:
            raise AssertionError(f"the simulation has not ended after {self._most_steps} steps: {self._unfinished()}")
        self.checksum = (self.checksum * 1_000_003 + number) & 0xFFFF_FFFF
        handle._run()

    def _chosen(self, waiting: list[asyncio.Handle]) -> asyncio.Handle:
        """Take a callback. Callbacks that are no tasks keep their order, which asyncio promises."""
        drawn = self._rng.random()
        self._now += TICK * drawn
        size = len(waiting)
        if size == 1 or drawn >= self._disorder:
            return waiting.pop(0)
        place = int(drawn / self._disorder * size)
        handle = waiting[place]
        if type(getattr(handle._callback, "__self__", None)) is not SimulatedTask:  # type: ignore[attr-defined]
            for earlier in range(place):
                if type(getattr(waiting[earlier]._callback, "__self__", None)) is not SimulatedTask:  # type: ignore[attr-defined]
                    place = earlier
                    break
        return waiting.pop(place)

    # Tasks

    def create_task(  # type: ignore[override]
        self, coro: Generator[Any, Any, T] | Coroutine[Any, Any, T], *, name: str | None = None,
        context: Context | None = None, **options: Any,
    ) -> asyncio.Task[T]:  # fmt: skip
        if self.over:
            coro.close()
            raise RuntimeError("the simulation is over")
        self._task_number += 1
        task: SimulatedTask[T] = SimulatedTask(
            coro, self._task_number, line_of_user(sys._getframe(1)),
            loop=self, name=name or f"Task-{self._task_number}", context=context, **options,
        )  # fmt: skip
        self._tasks[task.number] = task
        if len(self._tasks) >= self._most_tasks:
            self._tasks = {number: each for number, each in self._tasks.items() if not each.done() or _failed(each)}
            self._most_tasks = max(64, 2 * len(self._tasks))
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Call the function at once, and deliver its result later."""
        future: asyncio.Future[T] = self.create_future()
        try:
            result = func(*args)
        except StopIteration as error:
            self.call_later(TICK, _fail, future, RuntimeError(f"{func!r} raised StopIteration: {error}"))
        except Exception as error:  # noqa: BLE001 the future raises it
            self.call_later(TICK, _fail, future, error)
        else:
            self.call_later(self._rng.random() * 0.01, _succeed, future, result)
        return future

    def _asyncgen_firstiter_hook(self, agen: Any) -> None:
        # Those of a process end with it.
        if current_process.get() is None:
            super()._asyncgen_firstiter_hook(agen)  # type: ignore[misc]
        else:
            self._generators.add(agen)

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        if not self.over:
            super()._asyncgen_finalizer_hook(agen)  # type: ignore[misc]

    def pending(self) -> list[SimulatedTask[Any]]:
        """Return the tasks of living processes that have not ended, but not the current one."""
        return [task for task in self._tasks.values() if not (task.done() or _is_dead(task))]

    def failed(self) -> list[SimulatedTask[Any]]:
        """Return the tasks of living processes whose errors nobody has taken."""
        return [task for task in self._tasks.values() if _failed(task) and not _is_dead(task)]

    def _unfinished(self) -> str:
        return ", ".join(f"{task.get_name()} of {task.line}" for task in self.pending()) or "no task is left"

    def bury(self) -> None:
        """End the tasks of dead processes: their code runs to its end, and nothing that it does has an effect."""
        self.over = True
        self._waiting = _Discarded()
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        with warnings.catch_warnings():
            # Its last step may have made a coroutine that was not awaited yet.
            warnings.simplefilter("ignore", RuntimeWarning)
            for task in self._tasks.values():
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    _close(task.get_coro())
            for generator in list(self._generators):
                _end(generator)
        self._tasks.clear()
        # What is left in cycles must not be ended later, in a test that has nothing to do with it. All objects of the
        # program are of the youngest generation.
        gc.collect(0)
        sys.unraisablehook = hook
        self._timers.clear()

    for _name in (
        "add_reader", "add_signal_handler", "add_writer", "connect_accepted_socket", "connect_read_pipe",
        "connect_write_pipe", "create_connection", "create_datagram_endpoint", "create_server",
        "create_unix_connection", "create_unix_server", "getaddrinfo", "getnameinfo", "sendfile", "sock_accept",
        "sock_connect", "sock_recv", "sock_recv_into", "sock_sendall", "sock_sendfile", "start_tls",
        "subprocess_exec", "subprocess_shell",
    ):  # fmt: skip
        locals()[_name] = _unsupported(_name)


class _Discarded(list[asyncio.Handle]):
    def append(self, handle: asyncio.Handle) -> None:
        pass


def _close(coroutine: Any) -> None:
    for _ in range(MOST_CLOSINGS):
        try:
            Context().run(coroutine.close)
            return
        except BaseException:  # noqa: BLE001 it awaits again, or its cleanup fails
            continue


def _end(generator: Any) -> None:
    if hasattr(generator.ag_await, "close"):
        # It waits in its own cleanup, and cannot be closed meanwhile.
        _close(generator.ag_await)
    closing = generator.aclose()
    try:
        closing.send(None)
        for _ in range(MOST_CLOSINGS):
            closing.throw(asyncio.CancelledError)
    except BaseException:  # noqa: BLE001 it has ended, or its cleanup fails
        return


def _failed(task: SimulatedTask[Any]) -> bool:
    # asyncio logs the error of such a task when it is collected.
    return task.done() and bool(task._log_traceback)


def _is_dead(task: SimulatedTask[Any]) -> bool:
    process = task.process
    return process is not None and process.dead


def _succeed(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
