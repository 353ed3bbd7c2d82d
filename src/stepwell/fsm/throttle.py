"""A limit on the updates of one person."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from time import monotonic
from typing import Any

from stepwell.fsm.conversation.context import Context
from stepwell.options import check, check_function, check_whole

__all__ = ["Throttle"]

#: How many persons are remembered; those who have written least lately are forgotten first.
PERSONS = 10_000


class Throttle:
    """Middleware that lets at most so many updates of one person through in so many seconds, and drops the others.

    ``answer``: a text that is sent for the first update that is dropped. ``by``: returns who is counted, by default the
    user of the update; updates for which it returns ``None`` are not limited. Each process counts for itself.

    Example::

        router.middleware(Throttle(5, per=10, answer="Please wait a moment."))
    """

    def __init__(
        self,
        updates: int,
        *,
        per: float,
        answer: str | None = None,
        by: Callable[[Context[Any]], Hashable] | None = None,
    ) -> None:
        check_whole(updates, "Throttle(updates) is a number of at least 1, got {}", least=1)
        check(isinstance(per, int | float) and per > 0, "Throttle(per=...) is a number of seconds above 0, got {}", per)
        check_function(by, "Throttle(by=...) takes a function of the context, got {}", optional=True)
        self._updates, self._per, self._answer, self._by = updates, per, answer, by or _user_of
        #: What each person has left, when that was, and whether the answer was sent since.
        self._left: dict[Hashable, tuple[float, float, bool]] = {}

    async def __call__(self, ctx: Context[Any], handle: Callable[[], Awaitable[None]]) -> None:
        """Handle an update of a person who has some left."""
        person = self._by(ctx)
        if person is None:
            await handle()
            return
        now = monotonic()
        left, at, told = self._left.pop(person, (float(self._updates), now, False))
        left = min(self._updates, left + (now - at) * self._updates / self._per)
        if left < 1:
            self._left[person] = left, now, True
            if self._answer is not None and not told:
                ctx.answer(self._answer)
            return
        self._left[person] = left - 1, now, False
        if len(self._left) > PERSONS:
            del self._left[next(iter(self._left))]
        await handle()


def _user_of(ctx: Context[Any]) -> Hashable:
    return None if ctx.update.user is None else ctx.update.user.id
