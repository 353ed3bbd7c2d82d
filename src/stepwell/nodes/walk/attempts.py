"""The attempts of an ``exec``, of a node or of one batch item: retries, timeout and fallback."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from time import perf_counter
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from stepwell._secrets import quoted
from stepwell.errors import InvalidOption, NodeTimeout, Parked
from stepwell.nodes.graph.hooks import call_hook, is_async
from stepwell.nodes.walk.threads import in_thread
from stepwell.options import check_number, check_whole

if TYPE_CHECKING:
    from stepwell.nodes.graph.plan import Stage
    from stepwell.nodes.walk.cursor import Cursor

__all__ = ["Call", "ExecPolicy", "Setting", "attempt", "attempt_node", "call_once"]

logger: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")

Call = Callable[["Stage", "Cursor", Any, Any], Awaitable[Any]]

#: With a larger exponent a wait would overflow.
_MOST_BACKOFFS = 64


@dataclass(frozen=True, slots=True)
class ExecPolicy:
    """The validated settings of a node for its ``exec``."""

    max_retries: int
    wait: float
    backoff: float
    jitter: float
    retry_on: type[Exception] | tuple[type[Exception], ...]
    timeout: float | None
    inline: bool

    def __post_init__(self) -> None:
        check_whole(
            self.max_retries, "max_retries={}: it counts all attempts, so give a whole number of at least 1", least=1
        )
        for name, least in (("wait", 0), ("backoff", 1), ("jitter", 0)):
            value = getattr(self, name)
            check_number(value, f"{name}={{}}: give a number of at least {least}", least=least)
        check_number(self.timeout, "timeout={}: give seconds above 0, or None", above=0, optional=True)
        kinds = self.retry_on if isinstance(self.retry_on, tuple) else (self.retry_on,)
        if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
            raise InvalidOption(f"retry_on={quoted(self.retry_on)}: give an exception class or a tuple of them")

    @property
    def plain(self) -> bool:
        """Whether there is one attempt, without a timeout."""
        return self.max_retries == 1 and self.timeout is None

    def delay(self, attempt: int) -> float:
        """Return the seconds to wait after a failed attempt; the first attempt is 1."""
        wait = self.wait * self.backoff ** min(attempt - 1, _MOST_BACKOFFS)
        return wait + random.random() * self.jitter if self.jitter else wait


class Setting(Generic[T]):
    """An attribute of a node that is stored in its :class:`ExecPolicy`, so that a run compares one object."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, node: None, owner: type) -> Self: ...
    @overload
    def __get__(self, node: object, owner: type) -> T: ...
    def __get__(self, node: Any, owner: type) -> Any:
        return self if node is None else getattr(node._policy, self._name)

    def __set__(self, node: Any, value: T) -> None:
        node._policy = replace(node._policy, **{self._name: value})


async def attempt_node(stage: Stage, cursor: Cursor, node: Any, prep_res: Any, shared: Any) -> Any:
    """Run the ``exec`` of a node that is not a batch, with its attempts, timeout and fallback."""
    async with cursor.run.limiter(stage):
        return await attempt(stage, cursor, node, prep_res)


async def call_once(stage: Stage, cursor: Cursor, node: Any, value: Any) -> Any:
    """Call ``exec`` once, on the loop or in a thread, with its timeout."""
    timeout = stage.policy.timeout
    if stage.threaded or timeout is None:
        if stage.threaded:
            result = await in_thread(stage.path, cursor, stage.exec, node, value, timeout=timeout)
        else:
            result = stage.exec(node, value)
        # A decorated async def is a def that returns a coroutine.
        return await result if type(result) is CoroutineType else result
    timer = asyncio.timeout(timeout)
    try:
        async with timer:
            return await stage.exec(node, value)
    except TimeoutError:
        if timer.expired():
            raise NodeTimeout(stage.path, timeout) from None
        raise


async def attempt(
    stage: Stage,
    cursor: Cursor,
    node: Any,
    value: Any,
    *,
    call: Call = call_once,
    failed: Exception | None = None,
) -> Any:
    """Call ``exec`` until it succeeds, the attempts are used up, or its error is not one to retry.

    The number of the attempt is a local variable, so concurrent items do not share it. ``failed`` is the error of a
    first attempt that a chunk has made.
    """
    run = cursor.run
    policy = stage.policy
    number = 1
    last_error: Exception | None = None
    try:
        while True:
            cursor.attempt = number
            try:
                if failed is not None:
                    first, failed = failed, None
                    raise first
                result = await call(stage, cursor, node, value)
            except Exception as error:
                if run.cancelling(error) or isinstance(error, Parked):
                    # Cancelled work that fails must not be retried, and neither must work that waits.
                    raise
                last_error = error
                if number >= policy.max_retries or not isinstance(error, policy.retry_on):
                    if not stage.has_fallback:
                        raise
                    return await _fall_back(stage, cursor, node, value, error)
            else:
                cursor.attempt, cursor.attempts = 1, number
                return result
            delay = policy.delay(number)
            _report(stage, cursor, last_error, delay)
            if delay > 0:
                await run.sleep(delay)
            elif perf_counter() > run.yield_at:
                await run.yield_now()
            number += 1
    except asyncio.CancelledError as cancelled:
        # Cancelled between two attempts or before the fallback: keep the last error.
        if last_error is not None and cancelled.__context__ is None:
            cancelled.__context__ = last_error
        raise


async def _fall_back(stage: Stage, cursor: Cursor, node: Any, value: Any, error: Exception) -> Any:
    if stage.threaded and not is_async(stage.fallback):
        result = await in_thread(stage.path, cursor, stage.fallback, node, value, error)
        result = await result if type(result) is CoroutineType else result
    else:
        result = await call_hook(stage.fallback, node, value, error)
    cursor.attempt, cursor.attempts = 1, cursor.attempt
    return result


def _report(stage: Stage, cursor: Cursor, error: Exception, delay: float) -> None:
    logger.info(
        "%s: attempt %d of %d failed with %s, next attempt in %.3g s",
        stage.path,
        cursor.attempt,
        stage.policy.max_retries,
        type(error).__name__,
        delay,
    )
    emit = cursor.run.emit
    if emit is not None:
        emit("node.retried" if cursor.item is None else "item.retried", cursor, error=error)
