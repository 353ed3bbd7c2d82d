"""Bot API calls through a framework: retries while Telegram is unavailable, and our errors for timers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from stepwell.engine import backoff, masked_text
from stepwell.errors import BotApiError, BotUnavailable
from stepwell.fsm.engine import is_unmodified, is_unparsable, without_formatting

__all__ = ["MakeCall", "PauseOf", "Send", "attempt", "make_call", "refusal_of", "sender"]

logger: logging.Logger = logging.getLogger(__name__)

#: Makes one call with the framework, and returns its result as JSON. Raises the framework's errors.
MakeCall: TypeAlias = Callable[[dict[str, Any]], Awaitable[Any]]
#: Makes one call, and raises ``BotApiError`` or ``BotUnavailable``.
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[Any]]
#: Returns the seconds after which a call with this error may be made again; ``None`` if it would fail again.
PauseOf: TypeAlias = Callable[[Exception], float | None]

#: Seconds for which a call is retried.
CALL_PATIENCE = 20.0
#: Telegram's codes, by the names of the errors of frameworks that do not have them.
CODES: Final = {
    "BadRequest": 400, "UnauthorizedError": 401, "InvalidToken": 401, "ForbiddenError": 403, "Forbidden": 403,
    "NotFound": 404, "EndPointNotFound": 404, "ConflictError": 409, "Conflict": 409,
}  # fmt: skip
#: The first and the longest pause between two attempts, in seconds.
PAUSES = (0.5, 5.0)


async def make_call(make: MakeCall, pause_of: PauseOf, call: dict[str, Any]) -> Any:
    """Make a call, and retry it while Telegram is unavailable or limits the bot. Raises the framework's error.

    A text whose formatting is refused is sent as it is, without markup. An edit that would change nothing counts as
    made.
    """
    try:
        return await _make_call(make, pause_of, call)
    except Exception as error:
        if is_unmodified(str(error)):
            return None
        plain = without_formatting(call) if is_unparsable(str(error)) else None
        if plain is None:
            raise
    logger.warning("%s is sent without formatting, because Telegram cannot parse it", call["method"])
    first, *others = plain
    result = await _make_call(make, pause_of, first)
    for each in others:
        await _make_call(make, pause_of, each)
    return result


async def _make_call(make: MakeCall, pause_of: PauseOf, call: dict[str, Any]) -> Any:
    now = asyncio.get_running_loop().time
    give_up, failures = now() + CALL_PATIENCE, 0
    while True:
        try:
            return await make(call)
        except Exception as error:
            least_pause = pause_of(error)
            if least_pause is None:
                raise
            failures += 1
            pause = max(least_pause, backoff(failures, *PAUSES))
            if now() + pause > give_up:
                raise
            # Without the text of the error, which may contain the token.
            logger.warning("retrying %s in %g s (%s)", call["method"], pause, type(error).__name__)
        await asyncio.sleep(pause)


def sender(make: MakeCall, pause_of: PauseOf) -> Send:
    """Return the function with which timers and jobs make calls.

    It raises ``BotUnavailable`` if the call may be made later, and ``BotApiError`` if it was refused.
    """

    async def send(call: dict[str, Any]) -> Any:
        try:
            return await make_call(make, pause_of, call)
        except Exception as error:  # noqa: BLE001 it is raised as one of our errors
            if pause_of(error) is None:
                failure = refusal_of(call["method"], error)
            else:
                # Without the text and the cause, which may contain the token.
                failure = BotUnavailable(call["method"], None, type(error).__name__)
        raise failure

    return send


def refusal_of(method: str, error: Exception) -> BotApiError:
    """Return a call that was refused for good as our error."""
    code = getattr(error, "error_code", CODES.get(type(error).__name__.removeprefix("Telegram")))
    return BotApiError(method, code, masked_text(str(getattr(error, "message", error))))


def attempt(make: MakeCall, pause_of: PauseOf) -> Callable[..., Awaitable[Any]]:
    """Return the function with which a stream makes one attempt of a call. Its errors are ours."""

    async def try_call(method: str, /, **params: Any) -> Any:
        failure: BotApiError
        try:
            return await make({"method": method, **params})
        except Exception as error:  # noqa: BLE001 it is raised as one of our errors
            pause = pause_of(error)
            if pause is None:
                failure = refusal_of(method, error)
            else:
                # Without the text and the cause, which may contain the token.
                failure = BotUnavailable(method, None, type(error).__name__, retry_after=pause or None)
        raise failure

    return try_call
