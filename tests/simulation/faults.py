"""Faults of a simulated world as data, so that a failing schedule can be repeated and made shorter."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from stepwell.testing.simulated_store import NETWORK_FAULTS

__all__ = ["TELEGRAM_FAULTS", "Fault", "draw", "shrunk"]

#: What can happen to a call of the Bot API.
TELEGRAM_FAULTS = ("429", "500", "lost call", "lost result", "silent", "slow")


class Fault(NamedTuple):
    """A kill at a step of a process, a stop or a pause at a time, or the fate of a request, by its number."""

    kind: str
    where: str
    at: float
    #: The seconds of a pause.
    seconds: float = 0.0

    def __str__(self) -> str:
        more = f" for {self.seconds:g} s" if self.seconds else ""
        return f"{self.kind} {self.where} at {self.at:g}{more}"


def draw(
    choose: random.Random, places: Mapping[str, Sequence[str]], *, span: float, steps: int, requests: int, most: int
) -> list[Fault]:
    """Return random faults: of each place, the kinds that it can have."""
    faults = []
    for _ in range(choose.randint(0, most)):
        where = choose.choice(sorted(places))
        kind = choose.choice(places[where])
        if kind == "kill":
            # Many at the first steps, where a process takes up the work of another.
            at: float = choose.randint(1, choose.choice([steps // 10, steps]))
        elif kind in NETWORK_FAULTS or kind in TELEGRAM_FAULTS:
            at = choose.randint(1, choose.choice([requests // 5, requests]))
        else:
            at = round(choose.uniform(0, span), 2)
        faults.append(Fault(kind, where, at, round(choose.uniform(0.5, 8), 1) if kind == "pause" else 0.0))
    return faults


def shrunk(faults: Sequence[Fault], fails: Callable[[list[Fault]], bool]) -> list[Fault]:
    """Return a part of the faults, none of which can be left out for the run to fail: delta debugging."""
    left, parts = list(faults), 2
    if fails([]):
        return []
    while len(left) > 1:
        size = -(-len(left) // parts)
        for first in range(0, len(left), size):
            fewer = left[:first] + left[first + size :]
            if fails(fewer):
                left, parts = fewer, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(left))
    return left
