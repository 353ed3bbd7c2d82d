"""The limits of a worker for single flows."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from stepwell._secrets import quoted
from stepwell.errors import InvalidOption
from stepwell.nodes.walk.execution import check_concurrency
from stepwell.options import check_whole

__all__ = ["Limit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How many runs of a flow a worker and all workers run at once, and how many all workers start in a time.

    Example::

        workers = worker([flow], limits={flow: Limit(concurrency=5, rate=(20, 1))}, storage=storage)
    """

    #: The most runs at once in this worker.
    concurrency: int | None = None
    #: The most runs at once in all workers together. All of them must have the same limit.
    everywhere: int | None = None
    #: ``(100, 60)``: all workers together start at most 100 queued runs in any 60 seconds.
    rate: tuple[int, float] | None = None

    def __post_init__(self) -> None:
        if self.concurrency is not None:
            check_concurrency(self.concurrency)
        check_whole(
            self.everywhere,
            "everywhere={}: give the most runs at once in all workers, at least 1, or None",
            least=1,
            optional=True,
        )
        if self.rate is None:
            return
        valid = isinstance(self.rate, tuple) and len(self.rate) == 2
        count, seconds = self.rate if valid else (0, 0.0)
        if type(count) is not int or count < 1 or not isinstance(seconds, int | float) or isinstance(seconds, bool):
            valid = False
        if not (valid and seconds > 0 and isfinite(seconds)):
            raise InvalidOption(f"rate={quoted(self.rate)}: give (runs, seconds), such as rate=(100, 60)")
