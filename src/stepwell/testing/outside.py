"""What a simulated program must not take from outside: the clock, randomness and threads. It gets simulated ones."""

from __future__ import annotations

import asyncio
import datetime
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final, NamedTuple, NoReturn, Protocol

from stepwell.errors import UsageError
from stepwell.nodes.walk import thread_pool
from stepwell.slot import process
from stepwell.storage.base import facade
from stepwell.testing.simulated_loop import SimulatedLoop, current_process, is_of_user, line_of_user

__all__ = ["FoundFault", "replaced"]


class FoundFault(NamedTuple):
    """What a simulation has found in a program, such as a read of the clock of the machine.

    Example::

        from stepwell.testing.simulation import Simulation

        simulation = Simulation(strict=False)
        simulation.run(asyncio.sleep(60))
        assert simulation.found == []
    """

    #: ``clock``, ``randomness``, ``blocking``, ``thread``, ``task`` or ``error``.
    kind: str
    what: str
    #: The file and the line, if they are known.
    line: str | None

    def __str__(self) -> str:
        return f"{self.line or 'somewhere'}: {self.what}"


class Inside(Protocol):
    """The simulation that replaces the world outside."""

    loop: SimulatedLoop
    start: float
    #: For ids and keys of the program.
    entropy: random.Random

    def find(self, kind: str, what: str, line: str | None) -> None:
        """Note something that the program must not do."""


_inside: Inside | None = None
#: The thread that it runs in.
_thread = 0


def _here() -> Inside | None:
    """Return the simulation of this thread. The other threads of the Python process have the real world."""
    return _inside if threading.get_ident() == _thread else None


def _note(kind: str, what: str, depth: int = 2) -> None:
    line = line_of_user(sys._getframe(depth), calling=True)
    if line is not None:
        assert _inside is not None
        _inside.find(kind, what, line)


def _now(inside: Inside) -> float:
    """Return the time of the system clock of the current process."""
    running = current_process.get()
    return inside.start + inside.loop.time() + (0.0 if running is None else running.skew)


def _clock_of(real: Callable[[], Any], name: str, *, wall: bool, nanoseconds: bool) -> Callable[[], Any]:
    def read() -> Any:
        # A module that was imported in a simulation may keep this function.
        if (inside := _here()) is None:
            return real()
        _note("clock", f"{name}() reads the clock; in a simulation use asyncio.get_running_loop().time()")
        seconds = _now(inside) if wall else inside.loop.time()
        return int(seconds * 1e9) if nanoseconds else seconds

    return read


def _sleep(seconds: float, /) -> None:
    if (inside := _here()) is None:
        _REAL_SLEEP(seconds)
        return
    _note("blocking", f"time.sleep({seconds!r}) blocks the event loop; use await asyncio.sleep()")
    inside.loop.advance(seconds)


def _urandom(size: int, /) -> bytes:
    if (inside := _here()) is None:
        return _REAL_URANDOM(size)
    frame, depth = sys._getframe(1), 2
    # uuid4() and secrets call it.
    while frame is not None and frame.f_globals.get("__name__") in ("random", "secrets", "uuid"):
        frame, depth = frame.f_back, depth + 1  # type: ignore[assignment]
    _note(
        "randomness",
        "os.urandom(), uuid4() and secrets are random; use random, which the seed of a simulation sets",
        depth,
    )
    return inside.entropy.randbytes(size)


def _seed(self: random.Random, a: Any = None, version: int = 2) -> None:
    if a is None and (inside := _here()) is not None:
        a = inside.entropy.getrandbits(64)
    _REAL_SEED(self, a, version)


def _start_thread(self: threading.Thread) -> None:
    if (inside := _here()) is not None:
        line = line_of_user(sys._getframe(1))
        inside.find("thread", f"the thread {self.name!r} runs beside the event loop; use asyncio.to_thread()", line)
    _REAL_START(self)


def _submit_in_place(self: thread_pool.ThreadPool, function: Callable[..., Any], *args: Any) -> Future[Any]:
    future: Future[Any] = Future()
    try:
        future.set_result(function(*args))
    except BaseException as error:  # noqa: BLE001 the future raises it
        future.set_exception(error)
    return future


def _refuse_threadsafe(coro: Any, loop: asyncio.AbstractEventLoop) -> NoReturn:
    coro.close()
    raise UsageError(
        "a thread of a simulation runs in place, so it cannot wait for the event loop; use async def instead of def"
    )


_REAL_SLEEP, _REAL_URANDOM, _REAL_SEED = time.sleep, os.urandom, random.Random.seed
_REAL_START = threading.Thread.start
_REAL_DATETIME, _REAL_DATE = datetime.datetime, datetime.date


class _LooksLike(type):
    """The type of a class that stands for another one in ``isinstance()``."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.__mro__[1])

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.__mro__[1])


class _Datetime(datetime.datetime, metaclass=_LooksLike):
    def __new__(cls, *args: Any, **options: Any) -> Any:
        return _REAL_DATETIME(*args, **options)

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        if (inside := _here()) is None:
            return _REAL_DATETIME.now(tz)
        _note("clock", "datetime.now() reads the clock; in a simulation use asyncio.get_running_loop().time()")
        return _REAL_DATETIME.fromtimestamp(_now(inside), tz)

    @classmethod
    def today(cls) -> Any:
        return cls.now()

    @classmethod
    def utcnow(cls) -> Any:
        return cls.now(datetime.UTC).replace(tzinfo=None)


class _Date(datetime.date, metaclass=_LooksLike):
    def __new__(cls, *args: Any, **options: Any) -> Any:
        return _REAL_DATE(*args, **options)

    @classmethod
    def today(cls) -> Any:
        if (inside := _here()) is None:
            return _REAL_DATE.today()
        _note("clock", "date.today() reads the clock; in a simulation use asyncio.get_running_loop().time()")
        return _REAL_DATETIME.fromtimestamp(_now(inside)).date()


#: What stands for each function and class, wherever a module of the user or of Stepwell has it.
_INSTEAD: Final[dict[int, Any]] = {
    **{
        id(real): _clock_of(real, f"time.{name}", wall=wall, nanoseconds=name.endswith("_ns"))
        for name, wall in (
            ("time", True), ("time_ns", True), ("monotonic", False), ("monotonic_ns", False),
            ("perf_counter", False), ("perf_counter_ns", False),
        )
        for real in [getattr(time, name)]
    },
    id(time.sleep): _sleep,
    id(os.urandom): _urandom,
    id(_REAL_DATETIME): _Datetime,
    id(_REAL_DATE): _Date,
}  # fmt: skip
#: Modules of Stepwell that need the class itself, because they look at the types of values.
_REAL_CLASSES: Final = ("stepwell.codec", "stepwell.fsm.forms", "stepwell.testing.outside")


def _bindings() -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yield the names in modules that must have another value in a simulation."""
    for module in (time, os, datetime):
        yield from _bindings_of(module)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(module, ModuleType) or file is None or name.startswith(_REAL_CLASSES):
            continue
        if name.startswith("stepwell.") or is_of_user(file):
            yield from _bindings_of(module)


def _bindings_of(module: ModuleType) -> Iterator[tuple[dict[str, Any], str, Any]]:
    names = vars(module)
    for name, value in list(names.items()):
        instead = _INSTEAD.get(id(value))
        if instead is not None:
            yield names, name, instead


#: Functions and methods that are replaced in one place only.
_PATCHES: Final[tuple[tuple[Any, str, Any], ...]] = (
    (random, "_urandom", _urandom),
    (random.Random, "seed", _seed),
    (threading.Thread, "start", _start_thread),
    (thread_pool.ThreadPool, "submit", _submit_in_place),
    (asyncio, "run_coroutine_threadsafe", _refuse_threadsafe),
)

#: The number of modules when the bindings were listed last, and the list.
_listed: tuple[int, list[tuple[dict[str, Any], str, Any]]] = (0, [])


@contextmanager
def replaced(inside: Inside, seed: int) -> Iterator[None]:
    """Replace the clock, randomness and threads of this Python process while a simulation runs in it."""
    global _inside, _thread, _listed
    if _inside is not None:
        raise UsageError("a simulation runs already; a simulated program cannot run another one")
    if _listed[0] != len(sys.modules):
        _listed = len(sys.modules), list(_bindings())
    before = [(names, name, names[name]) for names, name, _ in _listed[1]]
    state, known, ids = random.getstate(), process._known, facade._unused_ids[:]
    replaced_names = [(target, name, vars(target)[name]) for target, name, _ in _PATCHES]
    _inside, _thread = inside, threading.get_ident()
    try:
        for names, name, instead in _listed[1]:
            names[name] = instead
        for target, name, instead in _PATCHES:
            setattr(target, name, instead)
        facade._unused_ids.clear()
        # No process of a simulation is known to run on this machine.
        process._known = (os.getpid(), "")
        random.seed(seed)
        yield
    finally:
        _inside = None
        for names, name, value in before:
            names[name] = value
        for target, name, value in replaced_names:
            setattr(target, name, value)
        process._known = known
        facade._unused_ids[:] = ids
        random.setstate(state)
