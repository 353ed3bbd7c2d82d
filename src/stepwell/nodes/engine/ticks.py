"""The ticks of a schedule: times at fixed intervals, or those of a cron expression in a time zone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple
from zoneinfo import ZoneInfo

from stepwell._optional import require
from stepwell.errors import InvalidOption

__all__ = ["Missed", "Timing", "tick_id"]

#: What to do with ticks that passed while no worker ran: skip them, run the last one, or run them all.
Missed = Literal["skip", "once", "all"]

#: ``"skip"`` still runs a tick that is at most this many seconds late: a worker may have been restarted.
GRACE = 60.0


class Timing(NamedTuple):
    """When a schedule ticks: every some seconds, or as a cron expression says. Times are seconds since 1970."""

    every: float | None
    cron: str | None
    tz: str = "UTC"

    def check(self) -> None:
        """Raise ``InvalidOption`` if it has no ticks."""
        if self.cron is None:
            seconds = self.every
            valid = isinstance(seconds, int | float) and not isinstance(seconds, bool)
            if seconds is None or not valid or not 0.1 <= seconds < float("inf"):
                raise InvalidOption(f"every({seconds!r}): give a number of seconds, at least 0.1")
            return
        cronsim = require("cronsim", "cron")
        try:
            zone = ZoneInfo(self.tz)
        except (KeyError, ValueError, OSError, TypeError) as error:
            raise InvalidOption(f"tz={self.tz!r}: give the name of a time zone, such as 'Europe/Berlin'") from error
        try:
            next(cronsim.CronSim(self.cron, datetime.now(zone)))
        except (cronsim.CronSimError, StopIteration, AttributeError, TypeError) as error:
            raise InvalidOption(
                f"cron({self.cron!r}): {error or 'it never ticks'}; give five fields, such as '0 9 * * 1-5'"
            ) from error

    def after(self, time: float) -> float:
        """Return the first tick after a time."""
        return next(self._forward(time))

    def last(self, time: float) -> float:
        """Return the last tick at or before a time."""
        if self.cron is None:
            assert self.every is not None
            return math.floor(time / self.every) * self.every
        # The search backwards begins before its start, to the second.
        return float(next(self._simulate(math.floor(time) + 1, reverse=True)).timestamp())

    def between(self, first: float, time: float) -> Iterator[float]:
        """Yield the ticks from ``first``, which is one, up to a time."""
        yield first
        for tick in self._forward(first):
            if tick > time:
                return
            yield tick

    def _forward(self, time: float) -> Iterator[float]:
        if self.cron is not None:
            for moment in self._simulate(time):
                yield float(moment.timestamp())
            return
        assert self.every is not None
        number = math.floor(time / self.every) + 1
        while True:
            if number * self.every > time:
                yield number * self.every
            number += 1

    def _simulate(self, time: float, *, reverse: bool = False) -> Any:
        cronsim = require("cronsim", "cron")
        return cronsim.CronSim(self.cron, datetime.fromtimestamp(time, ZoneInfo(self.tz)), reverse=reverse)


def tick_id(name: str, tick: float) -> str:
    """Return the id of the run of a tick, ``name@2026-11-16T09:00:00Z``: equal in every worker."""
    return f"{name}@{datetime.fromtimestamp(tick, UTC).isoformat().removesuffix('+00:00')}Z"
