"""Check that a history of operations on one key is linearizable.

Versions make this quick: they order the writes of a key, so each read only has to match the write that it saw,
in real-time order.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple


class Op(NamedTuple):
    """One operation: its start and end, and the version that it wrote or read."""

    kind: str
    key: int
    start: float
    end: float
    number: int | None
    write: str | None
    #: For a write with a claim: the time when the claim succeeded.
    held_from: float | None

    @property
    def wrote(self) -> bool:
        return self.kind in ("merge", "replace", "delete")


def check(history: list[Op]) -> None:
    """Raise ``AssertionError`` if the history of one key is not linearizable."""
    writes = sorted((op for op in history if op.wrote), key=lambda op: op.number or 0)
    numbers = [op.number for op in writes]
    assert len(set(numbers)) == len(numbers), "two writes made the same version"
    places = {(op.number, op.write): place for place, op in enumerate(writes, 1)}
    #: Positions without a record: before the first write, and after a delete.
    gone = [0, *(place for place, op in enumerate(writes, 1) if op.kind == "delete")]

    def possible(op: Op, place: int) -> bool:
        begun = place == 0 or writes[place - 1].start <= op.end
        over = place < len(writes) and writes[place].end < op.start
        return begun and not over

    finished: list[tuple[float, int]] = []
    ended = 0
    latest = 0
    for op in sorted(history, key=lambda op: op.start):
        # Operations that ended before this one began happened before it.
        finished.sort()
        while ended < len(finished) and finished[ended][0] < op.start:
            latest = max(latest, finished[ended][1])
            ended += 1
        if op.number is not None and op.kind != "nothing":
            place = places.get((op.number, op.write), -1)
            assert place > 0, f"{op} saw a version that was never written"
            assert place > latest if op.wrote else place >= latest, f"{op} comes after a newer version"
            assert op.wrote or writes[place - 1].kind != "delete", f"{op} saw a deleted record"
            assert op.wrote or possible(op, place), f"{op} saw a version at a time when it was not current"
        else:
            places_gone = [place for place in gone if place >= latest and possible(op, place)]
            assert places_gone, f"{op} saw no record at a time when there was one"
            place = places_gone[0]
        finished.append((op.end, place))
    held = sorted((op.held_from, op.start) for op in writes if op.held_from is not None)
    for (_, end), (start, _) in pairwise(held):
        assert end <= start, "two holders held the key at the same time"
