"""Attempts: how often an ``exec`` is tried, how long each may take, and what happens after the last."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from stepwell.errors import InvalidOption, NodeTimeout
from stepwell.nodes.engine.threads import in_thread

if TYPE_CHECKING:
    from stepwell.nodes.engine.plan import Stage
    from stepwell.nodes.engine.position import Cursor

__all__ = ["Call", "ExecPolicy", "Setting", "attempt", "attempt_node", "call_once"]

logger = logging.getLogger(__name__)

Call = Callable[["Stage", "Cursor", Any, Any], Awaitable[Any]]

#: Beyond this many doublings a wait only overflows.
_MOST_BACKOFFS = 64


@dataclass(frozen=True, slots=True)
class ExecPolicy:
    """How a node's ``exec`` is called: its settings, checked."""

    max_retries: int
    wait: float
    backoff: float
    jitter: float
    retry_on: type[Exception] | tuple[type[Exception], ...]
    timeout: float | None
    inline: bool

    def __post_init__(self) -> None:
        if not isinstance(self.max_retries, int) or isinstance(self.max_retries, bool) or self.max_retries < 1:
            raise InvalidOption(f"max_retries={self.max_retries!r}: it counts all attempts, so it is at least 1")
        for name, least in (("wait", 0), ("backoff", 1), ("jitter", 0)):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not value >= least:
                raise InvalidOption(f"{name}={value!r}: give a number of at least {least}")
        if self.timeout is not None and (not isinstance(self.timeout, int | float) or not self.timeout > 0):
            raise InvalidOption(f"timeout={self.timeout!r}: give seconds above 0, or None")
        kinds = self.retry_on if isinstance(self.retry_on, tuple) else (self.retry_on,)
        if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
            raise InvalidOption(f"retry_on={self.retry_on!r}: give an exception class or a tuple of them")

    @property
    def plain(self) -> bool:
        """One attempt, however long it takes."""
        return self.max_retries == 1 and self.timeout is None

    def delay(self, attempt: int) -> float:
        """Seconds to wait after the attempt of that number, counted from 1, has failed."""
        wait = self.wait * self.backoff ** min(attempt - 1, _MOST_BACKOFFS)
        return wait + random.random() * self.jitter if self.jitter else wait


class Setting:
    """An attribute of a node that lives in its :class:`ExecPolicy`: one object to compare and to copy."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, node: Any, owner: type) -> Any:
        return self if node is None else getattr(node._policy, self._name)

    def __set__(self, node: Any, value: Any) -> None:
        node._policy = replace(node._policy, **{self._name: value})


async def attempt_node(stage: Stage, cursor: Cursor, node: Any, prep_res: Any, shared: Any) -> Any:
    """Work off a plain node's ``exec``, with its attempts, timeout and fallback."""
    limiter = cursor.run.limiter(stage)
    if limiter is None:
        return await attempt(stage, cursor, node, prep_res)
    async with limiter:
        return await attempt(stage, cursor, node, prep_res)


async def call_once(stage: Stage, cursor: Cursor, node: Any, value: Any) -> Any:
    """Call ``exec`` once, where it belongs, and no longer than its timeout."""
    timeout = stage.policy.timeout
    if stage.threaded:
        result = await in_thread(stage.path, cursor, stage.exec, node, value, timeout=timeout)
    elif timeout is not None:
        timer = asyncio.timeout(timeout)
        try:
            async with timer:
                return await stage.exec(node, value)
        except TimeoutError:
            if timer.expired():
                raise NodeTimeout(stage.path, timeout) from None
            raise
    else:
        result = stage.exec(node, value)
    # A def that gives a coroutine (a decorated async def) is as good as an async def.
    if type(result) is CoroutineType:
        return await result
    return result


async def attempt(
    stage: Stage,
    cursor: Cursor,
    node: Any,
    value: Any,
    *,
    call: Call = call_once,
    failed: Exception | None = None,
) -> Any:
    """Try until an attempt succeeds, the attempts are used up, or an error is not worth another one.

    The number of the attempt is a local of this call: items that fail side by side never share it.
    ``failed`` is the error of a first attempt that was made elsewhere.
    """
    run = cursor.run
    policy = stage.policy
    number = 1
    unsettled: Exception | None = None
    try:
        while True:
            cursor.attempt = number
            try:
                if failed is not None:
                    first, failed = failed, None
                    raise first
                result = await call(stage, cursor, node, value)
            except Exception as error:
                if run.cancelling(error):
                    # Cancelled work that fails on its way out must not start again.
                    raise
                unsettled = error
                if number >= policy.max_retries or not isinstance(error, policy.retry_on):
                    if not stage.has_fallback:
                        raise
                    return await _fall_back(stage, cursor, node, value, error)
            else:
                cursor.attempt = 1
                return result
            delay = policy.delay(number)
            _report(stage, cursor, unsettled, delay)
            if delay > 0:
                await run.sleep(delay)
            number += 1
    except asyncio.CancelledError as cancelled:
        # Cancelled between two attempts, or before the fallback: the error so far must not vanish.
        if unsettled is not None and cancelled.__context__ is None:
            cancelled.__context__ = unsettled
        raise


async def _fall_back(stage: Stage, cursor: Cursor, node: Any, value: Any, error: Exception) -> Any:
    if stage.threaded and not stage.is_async("fallback"):
        result = await in_thread(stage.path, cursor, stage.fallback, node, value, error)
    else:
        result = stage.fallback(node, value, error)
    if type(result) is CoroutineType:
        result = await result
    cursor.attempt = 1
    return result


def _report(stage: Stage, cursor: Cursor, error: Exception, delay: float) -> None:
    logger.info(
        "%s: attempt %d of %d failed with %s, the next one follows in %.3g s",
        stage.path,
        cursor.attempt,
        stage.policy.max_retries,
        type(error).__name__,
        delay,
    )
    emit = cursor.run.emit
    if emit is not None:
        emit("node.retried" if cursor.item is None else "item.retried", cursor, error=error)
