"""The tools of a turn: functions that act on the world, whose intent and outcome are stored."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar, overload

from stepwell.codec.effects import Effect, Replay, check_replay
from stepwell.engine import call_function, quoted
from stepwell.errors import KeptError, StepwellError, UnknownOutcome, UsageError
from stepwell.options import check_function
from stepwell.turns.base import AttemptBase
from stepwell.turns.record import tool_prefix
from stepwell.turns.running.turn import Turn

__all__ = ["Tools", "current_turn", "tool", "without_exit"]

logger: logging.Logger = logging.getLogger(__name__)

#: Seconds that a tool with ``replay="never"`` gets to end when its turn is stopped.
GRACE = 5.0

F = TypeVar("F", bound=Callable[..., Any])

#: The turn whose handler runs in this task.
current: ContextVar[Turn | None] = ContextVar("stepwell_turn", default=None)


def current_turn() -> Turn | None:
    """Return the turn whose handler runs in this task and the tasks that it has started, if any.

    Example::

        async def remember(fact: str) -> None:
            turn = current_turn()
            if turn is not None:
                turn.history.append({"role": "system", "content": fact})
    """
    return current.get()


@overload
def tool(function: F, /) -> F: ...


@overload
def tool(*, replay: Replay = "never") -> Callable[[F], F]: ...


def tool(function: Any = None, /, *, replay: Replay = "never") -> Any:
    """Decorate a function that an agent framework calls, so that in a turn it is called by ``turn.tool``.

    ``replay="never"``: a call that was interrupted raises ``UnknownOutcome`` on the next attempt of the turn and does
    not run again. ``replay="safe"``: it runs again. Outside of a turn the function is simply called.

    Example::

        @tool(replay="never")
        async def delete(path: str) -> str:
            await files.delete(path)
            return f"{path} is deleted"
    """
    check_replay(replay)

    def decorate(function: Any) -> Any:
        check_function(function, "@tool decorates a function, got {}")

        @functools.wraps(function)
        async def called(*args: Any, **kwargs: Any) -> Any:
            turn = current.get()
            if turn is None:
                return await call_function(functools.partial(function, *args, **kwargs))
            return await turn.tool(function, *args, replay=replay, **kwargs)

        return called

    return decorate if function is None else decorate(function)


async def without_exit(what: str, work: Awaitable[Any]) -> Any:
    """Wait for some work of the program. It cannot end the program, which runs other turns."""
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:
        # Raised in a task, it would end the loop.
        raise UsageError(f"{what} raised {type(error).__name__}; it cannot end the program") from error


class Tools:
    """The calls of one attempt of a turn, and the effects that earlier attempts have stored."""

    def __init__(self, attempt: AttemptBase, stored: Mapping[str, str]) -> None:
        self._attempt = attempt
        self._prefix = tool_prefix(attempt.turn_id)
        self._seal = attempt.record.seal
        #: The effects by the name of their part.
        self.effects: dict[str, Effect] = {
            part: Effect.open(self._seal, part, text) for part, text in stored.items() if part.startswith(self._prefix)
        }
        #: Those of earlier attempts that this one has not come to yet.
        self._left: dict[str, Effect] = dict(self.effects)
        self._count = 0

    async def call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        replay: Replay,
        name: str | None = None,
        call_id: str | None = None,
        shown: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Call a function, or give what it has returned in an earlier attempt."""
        check_replay(replay)
        name = name or getattr(function, "__qualname__", None) or type(function).__qualname__
        self._count += 1
        part = f"{self._prefix}{self._count:06}" if call_id is None else f"{self._prefix}#{call_id}"
        intent = Effect.of(self._seal, name, (args, kwargs), replay)
        earlier = self._earlier(part, intent)
        known = None if earlier is None else self._left.pop(earlier)
        if earlier is not None:
            part = earlier
        elif part in self.effects:
            # That of another call stays: a later attempt may make it again.
            part = f"{part}~{self._attempt.number}"
        transcript = self._attempt.transcript
        if transcript is not None:
            transcript.tool(part, name, args, kwargs)
        if known is not None and (known.outcome is not None or known.unknown):
            if transcript is not None:
                returned = known.outcome == "returned"
                transcript.tool_ended(part, known.outcome or "unknown", known.value, shown if returned else None)
            if known.outcome == "returned":
                return known.value
            if known.outcome == "raised":
                raise KeptError(*known.value)
            logger.warning(
                "turn %s: the process died in %s, so its outcome is unknown, and it does not run again",
                self._attempt.turn_id, quoted(name),
            )  # fmt: skip
            raise UnknownOutcome(name, f"turn {self._attempt.turn_id}")
        with self._attempt.busy():
            if replay == "never":
                await self._attempt.store({part: intent.seal(self._seal, part)})
            self.effects[part] = intent
            return await self._run(part, intent, functools.partial(function, *args, **kwargs), shown)

    def _earlier(self, part: str, intent: Effect) -> str | None:
        """Return the part of the same call of an earlier attempt: this one, or another one if the order has changed."""
        there = self._left.get(part)
        if there is not None and there.digest == intent.digest:
            return part
        moved = next((name for name, each in self._left.items() if each.digest == intent.digest), None)
        if moved is not None:
            return moved
        if there is not None:
            logger.warning(
                "turn %s: attempt %d calls %s where an earlier attempt has called %s%s, so it runs anew",
                self._attempt.turn_id, self._attempt.number, quoted(intent.name), quoted(there.name),
                ", whose outcome is unknown" if there.unknown else "",
            )  # fmt: skip
        return None

    def entries(self) -> list[dict[str, Any]]:
        """Return what the calls have returned, or that it is unknown, as entries of the history."""
        return [
            {"role": "tool", "name": each.name, "content": "outcome unknown" if each.outcome is None else each.value}
            for each in self.effects.values()
            if each.outcome is not None or each.replay == "never"
        ]

    async def _run(
        self, part: str, intent: Effect, function: Callable[[], Any], shown: Callable[[Any], Any] | None
    ) -> Any:
        task = asyncio.ensure_future(without_exit(f"the tool {intent.name}", call_function(function)))
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            if intent.replay == "never" and not self._attempt.lost:
                # It has begun, and whoever stops the turn wants to know how it ended.
                await asyncio.wait({task}, timeout=GRACE)
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=GRACE)
            if task.done() and not task.cancelled():
                await self._attempt.protected(self._ended(part, intent, task, shown))
            raise
        return await self._attempt.protected(self._ended(part, intent, task, shown))

    async def _ended(
        self, part: str, intent: Effect, task: asyncio.Future[Any], shown: Callable[[Any], Any] | None
    ) -> Any:
        """Store how a call has ended; return its result, or raise its error."""
        if task.cancelled():
            # It was cancelled from inside, so nobody knows how far it has come.
            if intent.unknown:
                if self._attempt.transcript is not None:
                    self._attempt.transcript.tool_ended(part, "unknown", None)
                raise UnknownOutcome(intent.name, f"turn {self._attempt.turn_id}")
            raise asyncio.CancelledError
        error = task.exception()
        effect = intent.returned(task.result()) if error is None else intent.raised(error)
        try:
            text = effect.seal(self._seal, part)
        except StepwellError as refused:
            # It has run, so it does not run again.
            error = refused
            text = intent.raised(refused).seal(self._seal, part)
            effect = intent.raised(refused)
        self.effects[part] = effect
        if self._attempt.transcript is not None:
            returned = effect.outcome == "returned"
            self._attempt.transcript.tool_ended(part, effect.outcome or "", effect.value, shown if returned else None)
        await self._attempt.store({part: text})
        if error is not None:
            raise error
        return effect.value
