"""The stored form of a durable run: its table, its parts and its visit counts, and their validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NotRequired, TypedDict

from stepwell.codec.values import conform
from stepwell.errors import CorruptRecord
from stepwell.nodes.engine.ids import WaitId
from stepwell.record import Address, Place

__all__ = ["GRAPH", "Retention", "VisitCounts", "problem_of_part", "table_of", "unpack"]

#: ``False``: gone when it has finished. ``True``: kept. A number: kept for so many seconds.
Retention = bool | float

#: The part that every run has until it has finished.
GRAPH = "graph::"


def table_of(place: Place, address: Address) -> dict[str, Any] | None:
    """The table of a run; ``None`` if this is not the place of a run, ``CorruptRecord`` if it has another form."""
    table = place.stack[0] if place.stack else None
    if not (isinstance(table, dict) and "status" in table and "graph" in table):
        return None
    problem = conform(table, _Table)[1]
    for inside in table.get("open", {}).values() if problem is None else ():
        problem = problem or _problem_inside(inside)
    if problem is not None:
        raise CorruptRecord(address.text, "the position of its run", f"has another form ({problem})")
    return table


class _Table(TypedDict):
    """The form of :meth:`~stepwell.nodes.engine.journal.Journal._fill`."""

    status: Literal["running", "parked", "sleeping", "failed", "finished"]
    graph: str
    visits: str
    started: float
    run: NotRequired[str]
    base: NotRequired[str]
    keep: NotRequired[bool | float]
    open: NotRequired[dict[str, Any]]
    lines: NotRequired[dict[str, str]]
    errors: NotRequired[list[tuple[float, str, str, str]]]


class _Wait(TypedDict):
    """The form of a wait among what is under way."""

    id: str
    question: Any
    until: float | None
    answer: NotRequired[Any]
    again: NotRequired[str]


#: The forms of parts, by kind. What ``prep`` returned may be anything.
_PARTS: Final[Mapping[str, Any]] = {
    "graph": dict[str, tuple[str, dict[str, str | None]]],
    "params": dict[str, Any],
    "items": list[Any],
    "done": list[list[Any]],
    "field": list[Any],
}


def _problem_inside(inside: Any) -> str | None:
    """What is wrong with a value of ``Journal.open``: a wait, the progress of a batch, an action, or ``True``."""
    if isinstance(inside, dict):
        problem = conform(inside, _Wait)[1]
        ids = [] if problem is not None else [inside["id"], inside.get("again", "")]
        return problem or ("not the id of a wait" if any(each and WaitId.read(each) is None for each in ids) else None)
    if isinstance(inside, list):
        return conform(inside, tuple[int, int])[1]
    return None if inside is None or isinstance(inside, str | bool) else "unknown kind of progress"


def problem_of_part(name: str, value: Any) -> str | None:
    """What is wrong with the form of a part."""
    kind = name.partition(":")[0]
    problem = conform(value, _PARTS[kind])[1] if kind in _PARTS else None
    if problem is None and kind == "done":
        problem = next((problem for row in value if (problem := _problem_of_result(row))), None)
    if problem is None and kind == "field" and not (1 <= len(value) <= 3 and _hashable(value[0])):
        problem = "not a key and its value"
    return problem


def _problem_of_result(row: list[Any]) -> str | None:
    if len(row) == 2:
        return conform(row, tuple[int, Any])[1]
    return conform(row, tuple[int, None, str, str])[1]


def _hashable(key: Any) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True


class VisitCounts:
    """Counts that only grow, and their text, of which only what comes after a change is made again.

    ``[1, 1, 1, 2, 0, 0]`` is ``"1x3,2"``: equal neighbours together, without the zeros at the end.
    """

    def __init__(self, length: int) -> None:
        self._counts = [0] * length
        #: Each count and how often it is repeated, up to ``_known``; what comes after has changed, or is zero.
        self._runs: list[tuple[int, int]] = []
        self._known = 0
        #: Behind the last count that is not zero.
        self._end = 0

    def __getitem__(self, index: int) -> int:
        return self._counts[index]

    def __setitem__(self, index: int, count: int) -> None:
        assert count > 0
        self._counts[index] = count
        self._end = max(self._end, index + 1)
        runs = self._runs
        while self._known > index:
            known, times = runs.pop()
            self._known -= times
            if self._known < index:
                runs.append((known, index - self._known))
                self._known = index

    def copy(self) -> list[int]:
        """The counts."""
        return self._counts.copy()

    @property
    def text(self) -> str:
        """The counts as a text."""
        runs = self._runs
        for count in self._counts[self._known : self._end]:
            if runs and runs[-1][0] == count:
                runs[-1] = count, runs[-1][1] + 1
            else:
                runs.append((count, 1))
        self._known = self._end
        return ",".join([f"{count}x{times}" if times > 1 else str(count) for count, times in runs])


def unpack(text: str, length: int) -> list[int]:
    """The counts of a text, without the zeros at the end; ``ValueError`` if it is no text of so many counts."""
    counts: list[int] = []
    for part in text.split(",") if text else ():
        count, repeated, times = part.partition("x")
        repeat = int(times) if repeated else 1
        if not 0 < repeat <= length - len(counts) or int(count) < 0:
            raise ValueError("not a tally of this length")
        counts.extend([int(count)] * repeat)
    return counts
