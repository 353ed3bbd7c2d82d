"""The attempts of an ``exec``, of a node or of one batch item: retries, timeout and fallback."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from stepwell.errors import NodeTimeout, Parked, UnknownOutcome
from stepwell.nodes.effects import EXEC
from stepwell.nodes.graph.hooks import call_hook, is_async
from stepwell.nodes.run.branch import Park
from stepwell.nodes.walk.threads import in_thread

if TYPE_CHECKING:
    from stepwell.nodes.graph.plan import Stage
    from stepwell.nodes.walk.execution import Cursor

__all__ = ["Call", "attempt", "attempt_node", "call_once"]

logger: logging.Logger = logging.getLogger(__name__)

Call = Callable[["Stage", "Cursor", Any, Any], Awaitable[Any]]


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

    ``failed`` is the error of a first attempt that a chunk has made. An ``exec`` that must not run again after a crash
    is an effect of its run.
    """
    work = partial(_attempts, stage, cursor, node, value, call=call, failed=failed)
    if stage.policy.replay == "never" and cursor.branch is not None:
        effects, place = cursor.branch.journal.effects, cursor.effect_place(EXEC)
        try:
            return await effects.run_node(place, "never", work)
        except (Park, Parked):
            effects.forget(place)
            raise
    return await work()


async def _attempts(
    stage: Stage, cursor: Cursor, node: Any, value: Any, *, call: Call, failed: Exception | None
) -> Any:
    """Make the attempts. The number of the attempt is a local variable, so concurrent items do not share it."""
    run = cursor.run
    policy = stage.policy
    number = 1
    effects = 0 if cursor.effects is None else cursor.effects[0]
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
                if run.cancelling(error) or isinstance(error, Parked | UnknownOutcome):
                    # Cancelled work that fails must not be retried, and neither must work that waits.
                    raise
                if policy.replay == "never":
                    if isinstance(error, NodeTimeout):
                        # Nobody knows whether it has acted.
                        raise
                elif cursor.branch is not None and cursor.branch.journal.broken is None:
                    cursor.branch.journal.effects.check(cursor.node, cursor.visit, cursor.item, error=error)
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
            if cursor.effects is not None:
                cursor.effects[0] = effects
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
