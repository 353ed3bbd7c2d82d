"""The ticks of a schedule: times at fixed intervals, or those of a cron expression in a time zone."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

from stepwell._optional import require
from stepwell._secrets import quoted
from stepwell.errors import InvalidOption

__all__ = ["Missed", "Timing", "tick_id"]

#: What to do with ticks that passed while no worker ran: skip them, run the last one, or run them all.
Missed = Literal["skip", "once", "all"]

#: ``"skip"`` still runs a tick that is at most this many seconds late: a worker may have been restarted.
GRACE = 60.0

#: The last second of the year 9999.
_LATEST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()

#: No time zone sets its clock back by more seconds.
_LONGEST_SHIFT = 3 * 3600


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
                raise InvalidOption(f"every({quoted(seconds)}): give a number of seconds, at least 0.1")
            if seconds > _LATEST:
                raise InvalidOption(
                    f"every({quoted(seconds)}): its first tick is beyond the year 9999; give fewer seconds"
                )
            return
        cronsim = require("cronsim", "cron")
        try:
            zone = ZoneInfo(self.tz)
        except (KeyError, ValueError, OSError, TypeError):
            raise InvalidOption(
                f"tz={quoted(self.tz)}: give the name of a time zone, such as 'Europe/Berlin'"
            ) from None
        try:
            next(cronsim.CronSim(self.cron, datetime.now(zone)))
        except (cronsim.CronSimError, StopIteration, AttributeError, TypeError) as error:
            raise InvalidOption(
                f"cron({quoted(self.cron)}): {error or 'it never ticks'}; give five fields, such as '0 9 * * 1-5'"
            ) from error

    def after(self, time: float) -> float:
        """Return the first tick after a time."""
        return next(self._forward(time))

    def last(self, time: float) -> float:
        """Return the last tick at or before a time."""
        if self.cron is None:
            assert self.every is not None
            return math.floor(time / self.every) * self.every
        return next(self._search(time, reverse=True))

    def between(self, first: float, time: float) -> Iterator[float]:
        """Yield the ticks from ``first``, which is one, up to a time."""
        yield first
        for tick in self._forward(first):
            if tick > time:
                return
            yield tick

    def _forward(self, time: float) -> Iterator[float]:
        if self.cron is not None:
            yield from self._search(time)
            return
        assert self.every is not None
        number = math.floor(time / self.every) + 1
        while True:
            if number * self.every > time:
                yield number * self.every
            number += 1

    def _search(self, time: float, *, reverse: bool = False) -> Iterator[float]:
        """Yield the ticks of a cron expression after a time, or those at and before it, the last one first."""
        found = None
        for tick in self._ordered(time, reverse):
            # Several local times in a skipped hour have the same tick.
            if tick != found and (tick <= time) == reverse:
                found = tick
                yield tick

    def _ordered(self, time: float, reverse: bool) -> Iterator[float]:
        """Yield the ticks of a cron expression in their order, from a little before the start of a search.

        cronsim searches local times without a zone: with a zone, it can lose a tick, or find one in the past, where
        the clock is set back.
        """
        assert self.cron is not None
        cronsim = require("cronsim", "cron")
        zone = ZoneInfo(self.tz)
        fields = self.cron.split()
        once = len(fields) == 5 and not fields[0].startswith("*") and not fields[1].startswith("*")
        offsets = {
            datetime.fromtimestamp(time + each, zone).utcoffset() for each in (-_LONGEST_SHIFT, 0, _LONGEST_SHIFT)
        }
        # In an hour that comes twice, an earlier local time can be a later tick.
        margin = _LONGEST_SHIFT if len(offsets) > 1 else 0
        # The search backwards begins before its start, to the second.
        start = math.floor(time) + 1 + margin if reverse else math.floor(time) - margin
        local = datetime.fromtimestamp(start, zone).replace(tzinfo=None, fold=0)
        repeated: deque[float] = deque()
        for moment in cronsim.CronSim(self.cron, local, reverse=reverse):
            ticks = _ticks_of(moment, zone, once=once)
            for number, tick in enumerate(reversed(ticks) if reverse else ticks):
                if number:
                    # The other local times of the hour come before it.
                    repeated.append(tick)
                    continue
                while repeated and (repeated[0] < tick) != reverse:
                    yield repeated.popleft()
                yield tick
        yield from repeated


def _ticks_of(moment: datetime, zone: ZoneInfo, *, once: bool) -> list[float]:
    """Return the ticks at a local time, as Debian's cron has them: two if it comes twice, none if it is skipped.

    ``once``: the expression names its hours and minutes. Then it ticks at the first of two times, and right after a
    skipped hour.
    """
    first, second = (moment.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1))
    if first < second:
        return [first] if once else [first, second]
    # A skipped time is read with the offset before the change if fold is 0, so it is later than with fold=1.
    while first > second and once:
        moment += timedelta(minutes=1)
        first, second = (moment.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1))
    return [] if first > second else [first]


def tick_id(name: str, tick: float) -> str:
    """Return the id of the run of a tick, ``name@2026-11-16T09:00:00Z``: equal in every worker."""
    return f"{name}@{datetime.fromtimestamp(tick, UTC).isoformat().removesuffix('+00:00')}Z"
