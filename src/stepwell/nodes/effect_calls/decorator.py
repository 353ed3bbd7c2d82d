"""Functions that act on the world, and must not run twice: ``@effect``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, ParamSpec, TypeVar, overload

from stepwell._secrets import quoted
from stepwell.effects import Replay, check_replay
from stepwell.errors import UsageError
from stepwell.nodes.effect_calls.run_effects import inside_effect
from stepwell.nodes.walk.execution import Cursor, current
from stepwell.options import check_function

__all__ = ["effect"]

P = ParamSpec("P")
R = TypeVar("R")


@overload
def effect(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def effect(*, replay: Replay = "never") -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def effect(function: Callable[..., Any] | None = None, /, *, replay: Replay = "never") -> Any:
    """Store that a function is called before it runs in a node of a durable run, and what it returned after.

    If the node runs again, because its process died or another attempt follows, a call that has returned is not made
    again: it returns the stored result. If the process died while the function ran, nobody knows whether it has acted.
    With ``replay="never"`` it is not called again: the run takes the edge ``"unknown"`` of the node, or is ``stuck``
    until somebody says what happened with ``flow.complete()``, or calls ``flow.retry()``. With ``replay="safe"`` it is
    called again.

    A call is recognised by its position: the node, the visit, the item of a batch, and its number in the step. Its
    arguments and its result must be values that a run can store. A ``def`` is called in a ``def exec``, which runs in a
    thread; an ``async def`` anywhere. Outside a durable run the function just runs. An effect that raises has ended:
    the next attempt of its node, if there is one, calls it again.

    Example::

        @effect
        async def charge(order: str, amount: int) -> str:
            return f"receipt of {order}: {amount}"

        class Pay(Node):
            async def exec(self, order):
                return await charge(order, 100)
    """
    check_replay(replay)
    if function is None:
        return lambda function: _wrapped(function, replay)
    return _wrapped(function, replay)


def _wrapped(function: Callable[..., Any], replay: Replay) -> Callable[..., Any]:
    check_function(function, "@effect takes a function, not {}: write @effect or @effect(replay=...) above it")
    name = getattr(function, "__qualname__", type(function).__qualname__)
    if iscoroutinefunction(function):

        @wraps(function)
        async def call(*args: Any, **options: Any) -> Any:
            cursor = _step()
            if cursor is None or cursor.branch is None:
                return await function(*args, **options)
            effects = cursor.branch.journal.effects
            return await effects.call(
                cursor.effect_place(), name, (args, options), replay, lambda: function(*args, **options)
            )

        return call

    @wraps(function)
    def call_in_thread(*args: Any, **options: Any) -> Any:
        cursor = _step()
        if cursor is None or cursor.branch is None:
            return function(*args, **options)
        if asyncio._get_running_loop() is not None:
            raise UsageError(
                f"the effect {quoted(name)} is a def, and was called in the event loop, where it cannot wait for the "
                "storage: declare it async def and await it, or call it in a def exec, which runs in a thread"
            )
        effects = cursor.branch.journal.effects
        return effects.call_in_thread(
            cursor.effect_place(), name, (args, options), replay, lambda: function(*args, **options)
        )

    return call_in_thread


def _step() -> Cursor | None:
    """Return the position of the step whose effect is called; ``None`` outside a run, and within another effect."""
    return None if inside_effect() else current()
